"""What is started in the guests of a cluster, and what an all-reduce over its nodes took. Pure: text in, text out."""
