//! Times of interleaved rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{Direction, Name, Protect, Suite};
use super::contenders::{Contender, Entrant, Work};
use super::packets::Packets;

/// A measurement goes over the packets until it has taken so long.
const LEAST: Duration = Duration::from_micros(50);

/// Medians of one contender.
pub(crate) struct Row {
    pub(crate) contender: Name,
    pub(crate) suite: Suite,
    pub(crate) direction: Direction,
    pub(crate) batch: u16,
    /// Bytes of payload.
    pub(crate) size: u16,
    /// Nanoseconds a packet, the AEAD alone.
    pub(crate) ns: f64,
    /// Nanoseconds a packet with header protection.
    pub(crate) ns_with_hp: f64,
}

/// One contender in the rounds of one combination.
struct Runner {
    name: Name,
    contender: Box<dyn Contender>,
    /// One figure a round; without and with header protection.
    times: [Vec<f64>; 2],
}

/// Packets before the work, without and with header protection, and a place to work on them.
struct Course {
    pristine: [Packets; 2],
    packets: Packets,
    direction: Direction,
    batch: usize,
}

/// Measures every combination; an error where a packet was refused.
pub(crate) fn measure(args: &Protect, entrants: &[Entrant]) -> Result<Vec<Row>, String> {
    let combinations =
        args.suite.len() * args.direction.len() * args.batch.len() * args.sizes.len();
    let bar = progress(combinations as u64 * u64::from(args.rounds));
    let mut rows = Vec::new();
    for &suite in &args.suite {
        for &direction in &args.direction {
            for &batch in &args.batch {
                for &size in &args.sizes {
                    bar.set_message(format!("{} {}, {size} B", suite.text(), direction.text()));
                    let runners = race(entrants, suite, (direction, batch, size), args, &bar)?;
                    rows.extend(runners.into_iter().map(|runner| {
                        let [ns, ns_with_hp] = runner.times.map(median);
                        Row {
                            contender: runner.name,
                            suite,
                            direction,
                            batch,
                            size,
                            ns,
                            ns_with_hp,
                        }
                    }));
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// A line on a terminal, nothing elsewhere.
fn progress(rounds: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(rounds), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{percent:>3} % {bar:30} {msg} (left: {eta})") {
        bar.set_style(style);
    }
    bar
}

/// All rounds of one combination.
fn race(
    entrants: &[Entrant],
    suite: Suite,
    (direction, batch, size): (Direction, u16, u16),
    args: &Protect,
    bar: &ProgressBar,
) -> Result<Vec<Runner>, String> {
    let mut runners: Vec<Runner> = entrants
        .iter()
        .filter_map(|entrant| {
            Some(Runner {
                name: entrant.name,
                contender: (entrant.expand)(suite)?,
                times: [const { Vec::new() }; 2],
            })
        })
        .collect();
    let Some(first) = runners.first_mut() else {
        return Ok(runners);
    };
    let mut course = Course::new(
        first.contender.as_mut(),
        direction,
        batch.into(),
        size.into(),
    );
    for round in 0..args.rounds as usize {
        // Nobody always runs behind the same one.
        let count = runners.len();
        runners[..].rotate_left(usize::from(round > 0) % count);
        for runner in &mut runners {
            for header_protection in [false, true] {
                let ns = course
                    .time(runner.contender.as_mut(), header_protection)
                    .ok_or_else(|| format!("{} refused a packet", runner.name.text()))?;
                runner.times[usize::from(header_protection)].push(ns);
            }
        }
        bar.inc(1);
    }
    let place = |name: Name| entrants.iter().position(|entrant| entrant.name == name);
    runners.sort_by_key(|runner| place(runner.name));
    Ok(runners)
}

impl Course {
    /// `sealer` makes what is to be opened: all make the same, as was checked before.
    fn new(sealer: &mut dyn Contender, direction: Direction, batch: usize, size: usize) -> Self {
        let plain = Packets::plain(size);
        let pristine = [false, true].map(|header_protection| {
            let mut packets = plain.clone();
            if direction == Direction::Open {
                let work = Work {
                    direction: Direction::Seal,
                    header_protection,
                };
                sealer.work(work, &mut packets, batch);
                packets.spans.copy_from_slice(&plain.spans);
            }
            packets
        });
        Self {
            pristine,
            packets: plain,
            direction,
            batch,
        }
    }

    /// Nanoseconds a packet; `None` where one was refused.
    fn time(&mut self, contender: &mut dyn Contender, header_protection: bool) -> Option<f64> {
        let work = Work {
            direction: self.direction,
            header_protection,
        };
        let pristine = &self.pristine[usize::from(header_protection)];
        // Once unmeasured: who ran before has left its own code and tables in the caches.
        self.packets.restore(pristine);
        let mut done = contender.work(work, &mut self.packets, self.batch);
        let (mut took, mut count) = (Duration::ZERO, 0);
        while took < LEAST {
            self.packets.restore(pristine);
            let start = Instant::now();
            done &= contender.work(work, black_box(&mut self.packets), self.batch);
            took += start.elapsed();
            count += self.packets.spans.len();
        }
        done.then(|| took.as_secs_f64() * 1e9 / count as f64)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}
