//! What a worker does while receiving fails: it waits longer and longer between attempts, so that a
//! temporary error neither makes it spin nor costs it its connections. Timers and sends continue
//! meanwhile.

use std::time::Duration;

use squall_core::Time;

/// The wait between the first failure and the next attempt; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// The longest wait between attempts.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Once receiving has failed for this long without a success, the worker gives up.
const GIVE_UP: Duration = Duration::from_secs(600);

const _: () = assert!(FIRST_DELAY.as_nanos() < MAX_DELAY.as_nanos());
const _: () = assert!(MAX_DELAY.as_nanos() < GIVE_UP.as_nanos());

/// When to receive next, after failures.
#[derive(Debug, Default)]
pub(super) struct ReceiveBackoff(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Time,
    delay: Duration,
    retry_at: Time,
}

impl ReceiveBackoff {
    /// Records a failed attempt. Returns whether to give up.
    #[must_use]
    pub(super) fn on_error(&mut self, now: Time) -> bool {
        let (since, delay) = match &self.0 {
            Some(failing) => (failing.since, (2 * failing.delay).min(MAX_DELAY)),
            None => (now, FIRST_DELAY),
        };
        self.0 = Some(Failing {
            since,
            delay,
            retry_at: now + delay,
        });
        now.saturating_sub(since) >= GIVE_UP
    }

    /// Records an attempt that worked, whether or not anything arrived.
    pub(super) fn on_success(&mut self) {
        self.0 = None;
    }

    /// When the next attempt is due; `None`: receiving works.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.0.as_ref().map(|failing| failing.retry_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_and_end_after_ten_minutes() {
        let start = Time::ZERO + Duration::from_secs(5);
        let (mut backoff, mut now, mut attempts) = (ReceiveBackoff::default(), start, 0);
        let mut delays = Vec::new();
        while !backoff.on_error(now) {
            attempts += 1;
            let next = backoff.retry_at().unwrap();
            delays.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(
            delays[..12],
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
        );
        assert!(delays[11..].iter().all(|delay| *delay == 1000));
        // 1.023 s of shorter delays, then one attempt a second.
        assert_eq!(attempts, 10 + 599);
        assert!(now - start >= GIVE_UP && now - start < GIVE_UP + MAX_DELAY);
    }

    #[test]
    fn a_success_resets_the_backoff() {
        let mut backoff = ReceiveBackoff::default();
        let mut now = Time::ZERO;
        for _ in 0..550 {
            assert!(!backoff.on_error(now));
            now = backoff.retry_at().unwrap();
        }
        backoff.on_success();
        assert_eq!(backoff.retry_at(), None);
        assert!(!backoff.on_error(now + GIVE_UP));
        let retry_at = backoff.retry_at().unwrap();
        assert_eq!(retry_at, now + GIVE_UP + FIRST_DELAY);
    }
}
