"""What travels between gateways and workers, and the nouns both sides share."""
