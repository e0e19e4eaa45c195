//! NAT keepalives (RFC 3948 §4).
