"""What a site's store of KV blocks brings (`pdd bench pool`)."""
