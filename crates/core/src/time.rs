//! Time as the protocol sees it: a number supplied by the caller.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since an epoch chosen by the caller. Monotonic by contract; the
/// core never reads a clock.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// The point `nanos` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch; 2^64 of them are 584 years.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub const fn saturating_sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at the end of time: a timeout that far away never fires.
impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Zero when the right side is later, as [`Time::saturating_sub`].
impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_sub(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let time = Time::from_nanos(5) + Duration::from_nanos(7);
        assert_eq!(time.as_nanos(), 12);
        assert_eq!(time - Time::from_nanos(2), Duration::from_nanos(10));
        assert_eq!(Time::ZERO - time, Duration::ZERO);
        assert_eq!((time + Duration::MAX).as_nanos(), u64::MAX);
        let mut later = time;
        later += Duration::from_secs(1);
        assert!(later > time);
    }
}
