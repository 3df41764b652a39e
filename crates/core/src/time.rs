//! Time as the protocol sees it: a number supplied by the caller.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since an epoch chosen by the caller. Monotonic by contract; the
/// core never reads a clock.
///
/// An `Option<Time>` takes eight bytes, too: a connection has some twenty of them.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Nanoseconds since the epoch, plus one.
    after: NonZeroU64,
}

impl Time {
    /// The epoch.
    pub const ZERO: Self = Self::from_nanos(0);

    /// The end of time: 584 years after the epoch.
    pub const MAX: Self = Self::from_nanos(u64::MAX);

    /// The point `nanos` nanoseconds after the epoch, or [`Time::MAX`] if that is earlier.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        let after = NonZeroU64::MIN.saturating_add(nanos);
        Self { after }
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.after.get() - 1
    }

    /// Time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub const fn saturating_sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.after.get().saturating_sub(earlier.after.get()))
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Time").field(&self.as_nanos()).finish()
    }
}

/// Saturates at the end of time: a timeout that far away never fires.
impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            after: self.after.saturating_add(nanos),
        }
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
        assert_eq!(time + Duration::MAX, Time::MAX);
        assert_eq!(Time::from_nanos(u64::MAX), Time::MAX);
        assert_eq!(Time::MAX.as_nanos(), u64::MAX - 1);
        let mut later = time;
        later += Duration::from_secs(1);
        assert!(later > time);
    }

    #[test]
    fn an_optional_time_takes_no_more_room() {
        assert_eq!(size_of::<Option<Time>>(), size_of::<Time>());
        assert_eq!(format!("{:?}", Time::from_nanos(5)), "Time(5)");
        assert_eq!(Time::default().as_nanos(), 0);
    }
}
