//! Fields that every response gets.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Adds those fields that a response lacks.
pub(crate) fn add_missing(fields: &mut HeaderMap, extra: &[(HeaderName, HeaderValue)]) {
    for (name, value) in extra {
        if !fields.contains_key(name) {
            fields.insert(name, value.clone());
        }
    }
}
