//! Timing in interleaved rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{Direction, Name, Protect, Suite};
use super::contenders::{Contender, Entrant, Work};
use super::packets::Packets;

/// A measurement repeats the packets until it has taken at least this long.
const LEAST: Duration = Duration::from_micros(50);

/// Medians of one contender.
pub(crate) struct Row {
    pub(crate) contender: Name,
    pub(crate) suite: Suite,
    pub(crate) direction: Direction,
    pub(crate) batch: u16,
    /// Bytes of payload.
    pub(crate) size: u16,
    /// Nanoseconds per packet, AEAD only.
    pub(crate) ns: f64,
    /// Nanoseconds per packet with header protection.
    pub(crate) ns_with_hp: f64,
}

/// One contender in the rounds of one combination.
struct Runner {
    name: Name,
    contender: Box<dyn Contender>,
    /// One figure per round, without and with header protection.
    times: [Vec<f64>; 2],
}

/// Packets before the work, without and with header protection, and a place to work on them.
struct Course {
    pristine: [Packets; 2],
    packets: Packets,
    direction: Direction,
    batch: usize,
}

/// Measures every combination; an error if a packet was refused.
pub(crate) fn measure(args: &Protect, entrants: &[Entrant]) -> Result<Vec<Row>, String> {
    let combinations =
        args.suite.len() * args.direction.len() * args.batch.len() * args.sizes.len();
    let bar = progress(combinations as u64 * u64::from(args.rounds));
    let mut course = Course::new(args.sizes.iter().copied().max().unwrap_or_default().into());
    let mut rows = Vec::new();
    for &suite in &args.suite {
        for &direction in &args.direction {
            for &batch in &args.batch {
                for &size in &args.sizes {
                    bar.set_message(format!("{} {}, {size} B", suite.text(), direction.text()));
                    let mut runners = runners(entrants, suite);
                    if let Some(first) = runners.first_mut() {
                        let sealer = first.contender.as_mut();
                        course.set(sealer, direction, batch.into(), size.into());
                    }
                    race(&mut runners, &mut course, args.rounds, &bar)?;
                    let place = |name| entrants.iter().position(|entrant| entrant.name == name);
                    runners.sort_by_key(|runner| place(runner.name));
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

/// All contenders that have the suite, with keys expanded.
fn runners(entrants: &[Entrant], suite: Suite) -> Vec<Runner> {
    let runner = |entrant: &Entrant| {
        Some(Runner {
            name: entrant.name,
            contender: (entrant.expand)(suite)?,
            times: [const { Vec::new() }; 2],
        })
    };
    entrants.iter().filter_map(runner).collect()
}

/// All rounds of one combination.
fn race(
    runners: &mut [Runner],
    course: &mut Course,
    rounds: u32,
    bar: &ProgressBar,
) -> Result<(), String> {
    for _ in 0..rounds {
        for runner in &mut *runners {
            for header_protection in [false, true] {
                let ns = course
                    .time(runner.contender.as_mut(), header_protection)
                    .ok_or_else(|| format!("{} refused a packet", runner.name.text()))?;
                runner.times[usize::from(header_protection)].push(ns);
            }
        }
        // No contender is always first.
        if !runners.is_empty() {
            runners.rotate_left(1);
        }
        bar.inc(1);
    }
    Ok(())
}

impl Course {
    /// With room for packets of `largest` bytes of payload: all sizes are measured in the same
    /// memory.
    fn new(largest: usize) -> Self {
        let packets = Packets::plain(largest);
        Self {
            pristine: [packets.clone(), packets.clone()],
            packets,
            direction: Direction::Seal,
            batch: 1,
        }
    }

    /// Lays out the packets. `sealer` seals those to be opened: all contenders produce the same, as
    /// checked before.
    fn set(&mut self, sealer: &mut dyn Contender, direction: Direction, batch: usize, size: usize) {
        self.packets.fill(size);
        for (pristine, header_protection) in self.pristine.iter_mut().zip([false, true]) {
            pristine.fill(size);
            if direction == Direction::Open {
                let work = Work {
                    direction: Direction::Seal,
                    header_protection,
                };
                sealer.work(work, pristine, batch);
                pristine.spans.copy_from_slice(&self.packets.spans);
            }
        }
        (self.direction, self.batch) = (direction, batch);
    }

    /// Nanoseconds per packet; `None` if one was refused.
    fn time(&mut self, contender: &mut dyn Contender, header_protection: bool) -> Option<f64> {
        let work = Work {
            direction: self.direction,
            header_protection,
        };
        let pristine = &self.pristine[usize::from(header_protection)];
        // Once unmeasured: the previous contender has left its code and tables in the caches.
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

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
