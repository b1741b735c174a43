"""Clients over their quota: how they are found, and how long they have to be quiet.

- `quotas`: quotas at work; `throttled_rate`: the rate of one client
- `quota_entities`: whom quotas can be for; `quota_settings`: how rates are measured
"""
