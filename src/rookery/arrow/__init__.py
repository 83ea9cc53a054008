"""Arrow tables in requests and answers, decoded in a process of their own."""
