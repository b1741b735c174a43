"""Clients over their quota: how they are found, and how long they have to be quiet.

- `quotas`: quotas at work; `rates`: whose quota counts; `throttled_rate`: the rate of one client
- `request_meter`: what the requests of a connection take
- `quota_entities`: whom quotas can be for; `quota_settings`: how rates are measured
"""
