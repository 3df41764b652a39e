//! Viewers of a film that arrives in segments, as with DASH (ISO/IEC 23009-1).
//!
//! ```text
//!   segment n      audio, then video, on the viewer's own connection; the bitrate changes with n
//!   requested      when no more than BUFFER_S of the film waits to be played
//!   playback       begins with the first segment; segment n is due n segments later
//!   a stall        segment n is not there when it is due: playback waits for it, and everything
//!                  after it is due that much later
//! ```
//! Viewers begin evenly spread over a segment's time, and at different places in the schedule. The
//! film's clock can be faster than the wall clock, so that a short measurement holds many segments.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use squall_yard::error::Result;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout_at};

use super::client::{Client, Connection, Tally};
use super::files::{File, SEGMENT_S};

/// Seconds of the film that a viewer buffers ahead of playback.
const BUFFER_S: u64 = 3 * SEGMENT_S;

/// The number of viewers, and their speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Audience {
    pub(super) viewers: usize,
    /// Seconds of the film per second.
    pub(super) speed: f64,
}

impl Audience {
    /// Converts seconds of the film to wall-clock time.
    fn wall(self, film_s: u64) -> Duration {
        Duration::from_secs(film_s).div_f64(self.speed)
    }

    /// The shortest time in which every viewer requests a segment.
    pub(super) fn least(self) -> Duration {
        self.wall(SEGMENT_S)
    }

    /// The time for all viewers to begin, and as much again for the last one's buffer.
    pub(super) fn warm_up(self) -> Duration {
        self.wall(2 * SEGMENT_S)
    }
}

/// The viewers' counts.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) tally: Tally,
    stalls: AtomicU64,
}

impl Seen {
    /// Segments that were late.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }
}

/// Opens a connection for each viewer, and lets them begin to watch.
///
/// # Errors
/// There is no connection.
pub(super) async fn start(
    client: &Client,
    audience: Audience,
    seen: &Arc<Seen>,
) -> Result<JoinSet<Result<()>>> {
    let mut connections = Vec::with_capacity(audience.viewers);
    for _ in 0..audience.viewers {
        connections.extend(client.connect().await?.split(1));
    }
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for (index, connection) in connections.into_iter().enumerate() {
        let share = index as f64 / audience.viewers as f64;
        let viewer = Viewer {
            connection,
            first: index,
            begin: begin + audience.wall(SEGMENT_S).mul_f64(share),
            segment: audience.wall(SEGMENT_S),
            buffer: audience.wall(BUFFER_S),
            seen: Arc::clone(seen),
        };
        tasks.spawn(viewer.watch());
    }
    Ok(tasks)
}

/// When a viewer requests segments, and when they are due.
#[derive(Clone, Copy, Debug)]
struct Playback {
    /// A segment's time.
    segment: Duration,
    /// How much is buffered ahead of playback.
    buffer: Duration,
    /// When the next segment is due.
    due: Instant,
}

impl Playback {
    /// When the next segment is requested; `None`: at once.
    fn request_at(&self) -> Option<Instant> {
        self.due.checked_sub(self.buffer)
    }

    /// The next segment has arrived; if it was overdue, playback waited for it.
    fn arrived(&mut self, now: Instant) {
        self.due = self.due.max(now) + self.segment;
    }
}

struct Viewer {
    connection: Connection,
    /// Where in the schedule of bitrates the viewer begins.
    first: usize,
    begin: Instant,
    segment: Duration,
    buffer: Duration,
    seen: Arc<Seen>,
}

impl Viewer {
    async fn watch(mut self) -> Result<()> {
        let (audio, schedule) = (File::audio(), File::video());
        let mut schedule = schedule.iter().cycle().skip(self.first % schedule.len());
        sleep_until(self.begin.into()).await;
        if let Some(first) = schedule.next() {
            self.fetch([&audio, first]).await?;
        }
        let mut playback = Playback {
            segment: self.segment,
            buffer: self.buffer,
            due: Instant::now() + self.segment,
        };
        for video in schedule {
            if let Some(when) = playback.request_at() {
                sleep_until(when.into()).await;
            }
            let seen = Arc::clone(&self.seen);
            let mut fetching = pin!(self.fetch([&audio, video]));
            if let Ok(fetched) = timeout_at(playback.due.into(), &mut fetching).await {
                fetched?;
            } else {
                seen.stalls.fetch_add(1, Ordering::Relaxed);
                fetching.await?;
            }
            playback.arrived(Instant::now());
        }
        Ok(())
    }

    /// Requests files, one after the other.
    async fn fetch(&mut self, files: [&File; 2]) -> Result<()> {
        for file in files {
            let request = self.connection.request(file)?;
            self.connection.get(request, file, &self.seen.tally).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playback_waits_for_a_late_segment_and_keeps_its_pace_otherwise() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut playback = Playback {
            segment: 2 * second,
            buffer: 6 * second,
            due: begin + 10 * second,
        };
        assert_eq!(playback.request_at(), Some(begin + 4 * second));
        // Early: the next one is due a segment after this one.
        playback.arrived(begin + 5 * second);
        assert_eq!(playback.due, begin + 12 * second);
        // Three seconds late: so is everything after it.
        playback.arrived(begin + 15 * second);
        assert_eq!(playback.due, begin + 17 * second);
        assert_eq!(playback.request_at(), Some(begin + 11 * second));
    }

    #[test]
    fn a_faster_film_takes_less_wall_clock_time() {
        let audience = Audience {
            viewers: 1,
            speed: 10.0,
        };
        assert_eq!(audience.wall(SEGMENT_S), Duration::from_millis(200));
    }
}
