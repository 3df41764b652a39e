//! One viewer: requests segments ahead of their time, compares every byte, and records what a
//! player would show.
//!
//! ```text
//!   requested   audio and video of a segment together, when less than BUFFER of the film is left
//!   sent again  what the server has certainly not processed, and what found no connection, after
//!               a growing pause
//!   lost        every other failure: the server had accepted the request
//!   a stall     a segment is missing when it is due; everything after it is due that much later
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use squall_h3::client::Client;
use squall_h3::{Body, Error};
use tokio::time::{sleep, sleep_until};

use super::film::{Film, SEGMENT_S, Segment};

const SEGMENT: Duration = Duration::from_secs(SEGMENT_S);
/// How far a viewer buffers ahead of what is played.
const BUFFER: Duration = Duration::from_secs(3 * SEGMENT_S);
/// Segments until the buffer is full.
const TO_FILL: usize = 3;
/// The first pause before a request is sent again, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Number of faults that a viewer remembers.
const FAULTS: usize = 3;

/// What a viewer counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Requests for segments; each may be sent several times.
    pub(super) begun: u64,
    /// Requests answered with the whole segment.
    pub(super) finished: u64,
    /// Requests that were sent again because the server had not processed them.
    pub(super) rejected: u64,
    /// Requests that were sent again because there was no connection.
    pub(super) unconnected: u64,
    /// Requests that failed otherwise.
    pub(super) lost: u64,
    /// Responses that ended early.
    pub(super) truncated: u64,
    /// Responses other than expected.
    pub(super) wrong: u64,
    /// Bytes that were compared.
    pub(super) bytes: u64,
    pub(super) stalls: u64,
    pub(super) stalled: Duration,
    /// The lowest buffer level at a segment's arrival, once it had been full.
    pub(super) least_buffer: Option<Duration>,
    /// How long the slowest request took, with repetitions.
    pub(super) slowest: Duration,
    /// The first things that went wrong.
    pub(super) faults: Vec<String>,
}

/// A viewer.
pub(super) struct Viewer {
    pub(super) client: Client,
    pub(super) film: Arc<Film>,
    pub(super) port: u16,
    /// Chooses the place in the ladder, and the pauses.
    pub(super) index: usize,
    pub(super) begin: Instant,
    /// The end of the show: earlier requests still complete.
    pub(super) over: Arc<AtomicBool>,
}

impl Viewer {
    pub(super) async fn watch(self) -> Seen {
        let mut seen = Seen::default();
        sleep_until(self.begin.into()).await;
        // The first segment sets the clock.
        let mut due: Option<Instant> = None;
        for number in 0.. {
            if let Some(when) = due.and_then(|due| due.checked_sub(BUFFER)) {
                sleep_until(when.into()).await;
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let [audio, video] = self.film.at(number, self.index);
            let (audio, video) = tokio::join!(self.fetch(audio), self.fetch(video));
            seen.add(audio);
            seen.add(video);
            let now = Instant::now();
            if let Some(due) = due {
                let left = due.saturating_duration_since(now);
                if number >= TO_FILL {
                    let least = seen.least_buffer.unwrap_or(left).min(left);
                    seen.least_buffer = Some(least);
                }
                if now > due {
                    seen.stalls += 1;
                    seen.stalled += now - due;
                }
            }
            due = Some(due.map_or(now, |due| due.max(now)) + SEGMENT);
        }
        seen
    }

    /// Requests a segment until it has arrived.
    async fn fetch(&self, segment: &Segment) -> Seen {
        let mut seen = Seen {
            begun: 1,
            ..Seen::default()
        };
        let (begun, mut attempt) = (Instant::now(), 0);
        while !self.over.load(Ordering::Relaxed) || attempt == 0 {
            match self.client.send(self.request(&segment.path)).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    let compared = compare(response.into_body(), &segment.content, &mut seen.bytes);
                    match compared.await {
                        Ok(()) => {
                            seen.finished = 1;
                            break;
                        }
                        Err(Difference::Truncated(why)) => {
                            seen.truncated += 1;
                            seen.note(format!("{}: {why}", segment.path));
                        }
                        Err(Difference::Content) => {
                            seen.wrong += 1;
                            seen.note(format!("{}: other content", segment.path));
                        }
                    }
                }
                Ok(response) => {
                    seen.wrong += 1;
                    seen.note(format!("{}: {}", segment.path, response.status()));
                }
                Err(Error::Connect(_)) => seen.unconnected += 1,
                Err(error) if error.is_unprocessed() => seen.rejected += 1,
                Err(error) => {
                    seen.lost += 1;
                    seen.note(format!("{}: {error}", segment.path));
                }
            }
            sleep(self.pause(attempt)).await;
            attempt += 1;
        }
        seen.slowest = begun.elapsed();
        seen
    }

    fn request(&self, path: &str) -> Request<Empty<Bytes>> {
        let uri = format!("https://127.0.0.1:{}{path}", self.port);
        Request::get(uri).body(Empty::new()).expect("a request")
    }

    /// Doubles with each attempt; half of it is varied, so that viewers who failed together do not
    /// return together.
    fn pause(&self, attempt: u32) -> Duration {
        let longest = FIRST_PAUSE
            .saturating_mul(1 << attempt.min(10))
            .min(LONGEST_PAUSE);
        // Spreads neighbours evenly: multiples of the golden ratio.
        let spread = (self.index as f64 + f64::from(attempt)) * 0.618_034;
        longest.mul_f64(0.5 + spread.fract() / 2.0)
    }
}

enum Difference {
    Truncated(String),
    Content,
}

/// Reads a body to its end, and compares it.
async fn compare(mut body: Body, expected: &[u8], bytes: &mut u64) -> Result<(), Difference> {
    let mut at = 0;
    while let Some(frame) = body.frame().await {
        let why = |error| {
            Difference::Truncated(format!("after {at} of {} bytes: {error}", expected.len()))
        };
        let frame = frame.map_err(why)?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        if expected.get(at..at + data.len()) != Some(data) {
            return Err(Difference::Content);
        }
        at += data.len();
        *bytes += data.len() as u64;
    }
    if at == expected.len() {
        return Ok(());
    }
    Err(Difference::Truncated(format!(
        "ended after {at} of {} bytes",
        expected.len()
    )))
}

impl Seen {
    fn note(&mut self, fault: String) {
        if self.faults.len() < FAULTS {
            self.faults.push(fault);
        }
    }

    /// Adds what another viewer has seen.
    pub(super) fn add(&mut self, other: Self) {
        self.begun += other.begun;
        self.finished += other.finished;
        self.rejected += other.rejected;
        self.unconnected += other.unconnected;
        self.lost += other.lost;
        self.truncated += other.truncated;
        self.wrong += other.wrong;
        self.bytes += other.bytes;
        self.stalls += other.stalls;
        self.stalled += other.stalled;
        self.slowest = self.slowest.max(other.slowest);
        self.least_buffer = match (self.least_buffer, other.least_buffer) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        for fault in other.faults {
            self.note(fault);
        }
    }
}
