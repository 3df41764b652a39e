//! A rustls session: CRYPTO bytes in and out, key material out.
