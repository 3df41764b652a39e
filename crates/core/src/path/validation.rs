//! The validation of a path (RFC 9000 §8.2): challenges out, a response in, or an end by time.

use std::time::Duration;

use crate::config::MIN_UDP_PAYLOAD;
use crate::time::Time;

/// Challenges sent for one validation.
const CHALLENGES: usize = 3;

/// The longest interval between challenges of repeated attempts.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// A challenge that was sent.
#[derive(Clone, Copy, Debug)]
struct Challenge {
    data: [u8; 8],
    sent: Time,
    /// Whether its datagram was as large as any path must carry.
    full: bool,
}

/// The result of a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The round-trip time.
    pub(crate) time: Duration,
    /// Whether the size that QUIC needs has been shown to pass as well.
    pub(crate) size: bool,
}

/// A validation in progress.
#[derive(Debug)]
pub(crate) struct Validation {
    sent: [Option<Challenge>; CHALLENGES],
    /// When the next challenge is due; `None`: all have been sent.
    next: Option<Time>,
    /// When the attempt is given up.
    expires: Time,
    /// Between two challenges.
    interval: Duration,
    /// Whether the connection moves to the path once it is validated.
    pub(crate) then_move: bool,
}

impl Validation {
    /// Begins at `now`; `pto` is the larger of the probe timeouts of the path in use and of an
    /// unknown path. RFC 9000 §8.2.4: the attempt lasts three of them; RFC 9000 §8.2.1: challenges
    /// are sent no faster than Initials would be.
    #[must_use]
    pub(crate) fn new(now: Time, pto: Duration, then_move: bool) -> Self {
        Self {
            sent: [None; CHALLENGES],
            next: Some(now),
            expires: now + 3 * pto,
            interval: pto,
            then_move,
        }
    }

    /// The next attempt after this one failed.
    #[must_use]
    pub(crate) fn again(&self, now: Time) -> Self {
        Self::new(now, self.next_interval(), self.then_move)
    }

    /// The interval of the attempt after this one, which is twice as long, up to 10 s.
    #[must_use]
    pub(crate) fn next_interval(&self) -> Duration {
        let interval = (2 * self.interval).min(MAX_INTERVAL);
        interval.max(self.interval)
    }

    /// Whether another attempt would be no slower than this one.
    #[must_use]
    pub(crate) fn is_slowest(&self) -> bool {
        self.interval >= MAX_INTERVAL
    }

    /// Whether a challenge is due.
    #[must_use]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.next.is_some_and(|t| t <= now)
    }

    /// Whether the attempt has failed.
    #[must_use]
    pub(crate) fn has_failed(&self, now: Time) -> bool {
        self.expires <= now
    }

    /// When to act next. A challenge that is due waits for credit, which does not come with time.
    #[must_use]
    pub(crate) fn wakes_at(&self, now: Time) -> Time {
        self.next
            .filter(|t| *t > now)
            .map_or(self.expires, |t| t.min(self.expires))
    }

    /// A challenge was sent in a datagram of `size` bytes.
    pub(crate) fn on_sent(&mut self, now: Time, data: [u8; 8], size: usize) {
        self.sent.rotate_right(1);
        self.sent[0] = Some(Challenge {
            data,
            sent: now,
            full: size >= usize::from(MIN_UDP_PAYLOAD),
        });
        self.next = Some(now + self.interval).filter(|t| *t < self.expires);
    }

    /// Processes a PATH_RESPONSE; `None` if it answers no challenge of this validation.
    #[must_use]
    pub(crate) fn answer(&self, now: Time, data: [u8; 8]) -> Option<Answer> {
        let challenge = self.sent.iter().flatten().find(|c| c.data == data)?;
        Some(Answer {
            time: now - challenge.sent,
            size: challenge.full,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTO: Duration = Duration::from_millis(100);

    fn ms(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000)
    }

    // test: RFC 9000 §8.2.1, §8.2.3, §8.2.4
    #[test]
    fn three_challenges_are_sent_and_any_may_be_answered() {
        let mut validation = Validation::new(ms(0), PTO, false);
        let mut sent = 0;
        for now in (0..300).map(ms) {
            if validation.is_due(now) {
                sent += 1;
                validation.on_sent(now, [sent; 8], 1200);
            }
            assert!(!validation.has_failed(now));
            assert!(validation.wakes_at(now) > now);
        }
        assert_eq!(sent, 3);
        assert!(validation.has_failed(ms(300)));
        assert_eq!(validation.answer(ms(250), [9; 8]), None);
        for n in 1..=3 {
            let answer = validation.answer(ms(250), [n; 8]).unwrap();
            assert_eq!(
                answer,
                Answer {
                    time: ms(250) - ms(100 * u64::from(n - 1)),
                    size: true
                }
            );
        }
    }

    // test: RFC 9000 §8.2.3
    #[test]
    fn a_small_challenge_does_not_validate_the_mtu() {
        let mut validation = Validation::new(ms(0), PTO, false);
        validation.on_sent(ms(0), [1; 8], 1199);
        assert!(!validation.answer(ms(1), [1; 8]).unwrap().size);
    }
}
