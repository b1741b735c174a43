"""The APIs about configs of topics and brokers, and about client quotas."""
