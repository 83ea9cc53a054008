"""Webhooks: subscriptions whose consumer is an HTTP endpoint.

A receiver checks each call with `verify`:

    rookery.webhooks.verify(secret, request.headers, await request.body())

What calls the endpoints of a server is in `dispatcher`; where they may lead, in `addresses`.
"""

from rookery.errors import BadSignature
from rookery.webhooks.signing import new_secret, sign, verify

__all__ = ["BadSignature", "new_secret", "sign", "verify"]
