//! What a resource outside the lock's database has accepted keeps lower tokens out.
