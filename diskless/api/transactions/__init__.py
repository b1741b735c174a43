"""The APIs of transactional producers and of who looks after them, one file each.

FindCoordinator and InitProducerId, which serve others too, lie with groups and records. All of them
reach coordinators through `diskless/transactions/transaction_router.py`.
"""
