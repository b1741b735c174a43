"""DescribeAcls, CreateAcls, DeleteAcls: the rules of access control, seen and changed by clients.

`acl_rows` has what they share. Without an authorizer each of them answers SECURITY_DISABLED.
"""
