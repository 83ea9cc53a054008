"""Policies: settings for every queue whose name matches, also for those that exist.

Prints:

    kept in logs.web: [3, 4]
    kept in logs.important: [0, 1, 2, 3, 4]
    without the policy: [3, 4, 5, 6, 7]
"""

import rookery

with rookery.Broker() as broker:
    web = broker.queue("logs.web")
    # What a queue says of itself counts more than any policy.
    important = broker.queue("logs.important", length_max=1_000)
    for queue in (web, important):
        queue.publish_many(range(5))

    broker.set_policy("small logs", r"^logs\.", length_max=2)
    print("kept in logs.web:", [message.data for message in web.peek(10)])
    print("kept in logs.important:", [message.data for message in important.peek(10)])

    broker.delete_policy("small logs")
    web.publish_many([5, 6, 7])
    print("without the policy:", [message.data for message in web.peek(10)])
