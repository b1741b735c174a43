"""A bank of accounts in topics, whose money no crash may make or lose.

- `bank`: A bank: tellers move money by transactions, readers and clerks read what is committed,
  all of it while brokers and clients are killed and paused.
- `books`: What a bank saw of its transfers, and what is wrong with it: plain functions over
  plain values.
- `clerk`: A clerk: reads legs, writes the balance of the account after each, and commits both
  as one.
- `programs`: How the programs of the bank are told what to do, and how they say what happens.
- `readers`: Who reads what a bank's programs write, in threads: consumers, and tasks of the
  Spark source.
- `teller`: A teller: moves money between random accounts, both legs in one transaction, until
  told to stop.
"""
