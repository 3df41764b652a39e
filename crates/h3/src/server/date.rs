//! The `date` field, formatted once a second (RFC 9110 §6.6.1).

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;

thread_local! {
    /// The second, and its text.
    static LAST: RefCell<(u64, HeaderValue)> =
        const { RefCell::new((0, HeaderValue::from_static(""))) };
}

/// The time as the value of a `date` field.
pub(super) fn now() -> HeaderValue {
    let now = SystemTime::now();
    let second = now
        .duration_since(UNIX_EPOCH)
        .map_or(1, |time| time.as_secs());
    LAST.with_borrow_mut(|(last, value)| {
        if *last != second {
            *last = second;
            let text = httpdate::fmt_http_date(now);
            *value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        }
        value.clone()
    })
}
