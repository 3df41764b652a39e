//! A cached file as HTTP/3 sends it: encoded once a second, since its `date` changes.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::DATE;
use http::{HeaderValue, Response};
use squall_h3::server::Reply;

use super::conditional::format_seconds;

/// A response and the second in which it was encoded.
#[derive(Default)]
pub(super) struct Slot(RwLock<Option<(u64, Reply)>>);

impl Slot {
    /// The response, encoded again if it is from another second. Copies nothing of its body.
    pub(super) fn get(&self, make: impl FnOnce() -> Response<Bytes>) -> Reply {
        // RFC 9110 §6.6.1; before 1970 a clock has no date.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((second, reply)) = &*kept
            && *second == now
        {
            return reply.clone();
        }
        drop(kept);
        let mut response = make();
        if let Ok(date) = HeaderValue::try_from(format_seconds(now)) {
            response.headers_mut().insert(DATE, date);
        }
        let reply = Reply::new(response);
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((now, reply.clone()));
        reply
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}
