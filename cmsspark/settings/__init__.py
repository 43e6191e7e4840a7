"""Settings, credentials, Kerberos and the keys of pseudonyms."""
