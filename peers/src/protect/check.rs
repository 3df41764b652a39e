//! Checks, before anything is measured, that all contenders do the same work.

use super::args::{Direction, Protect, Suite};
use super::contenders::{Contender, Entrant, Work};
use super::packets::{HEADER_LEN, PACKETS, Packets};

/// Fails with an error that names the contender that differs, and how.
pub(crate) fn check(args: &Protect, entrants: &[Entrant]) -> Result<(), String> {
    for &suite in &args.suite {
        for &size in &args.sizes {
            for header_protection in [false, true] {
                let plain = Packets::plain(size.into());
                let mut expected: Option<(&'static str, Vec<u8>)> = None;
                for entrant in entrants {
                    let Some(mut contender) = (entrant.expand)(suite) else {
                        continue;
                    };
                    for &batch in &args.batch {
                        let sealed =
                            round_trip(contender.as_mut(), &plain, header_protection, batch.into())
                                .map_err(|what| {
                                    format!("{} {what}: {}", entrant.name.text(), case(suite, size))
                                })?;
                        let (first, bytes) =
                            expected.get_or_insert_with(|| (entrant.name.text(), sealed.clone()));
                        if let Some(at) = sealed.iter().zip(bytes).position(|(a, b)| a != b) {
                            return Err(format!(
                                "{} and {first} seal differently, from byte {} of packet {} on: {}",
                                entrant.name.text(),
                                at % plain.len,
                                at / plain.len,
                                case(suite, size)
                            ));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn case(suite: Suite, size: u16) -> String {
    format!("{}, {size} bytes", suite.text())
}

/// Seals, opens, and tries a forged packet; returns the sealed packets, or what went wrong.
fn round_trip(
    contender: &mut dyn Contender,
    plain: &Packets,
    header_protection: bool,
    batch: usize,
) -> Result<Vec<u8>, &'static str> {
    let work = |direction| Work {
        direction,
        header_protection,
    };
    let mut packets = plain.clone();
    if !contender.work(work(Direction::Seal), &mut packets, batch) {
        return Err("refuses to seal");
    }
    let sealed = packets.buf.clone();
    packets.spans.copy_from_slice(&plain.spans);
    if !contender.work(work(Direction::Open), &mut packets, batch) {
        return Err("does not open what it sealed");
    }
    if (0..plain.spans.len()).any(|index| packets.content(index) != plain.content(index)) {
        return Err("opens to something else");
    }
    packets.buf.copy_from_slice(&sealed);
    packets.spans.copy_from_slice(&plain.spans);
    // A bit of the ciphertext, beyond the sample where it is long enough.
    let forged = (PACKETS - 1) * plain.len + HEADER_LEN + (plain.len - HEADER_LEN) / 2;
    packets.buf[forged] ^= 0x10;
    if contender.work(work(Direction::Open), &mut packets, batch) {
        return Err("opens a forged packet");
    }
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::Name;
    use super::super::contenders::enter;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Protect,
    }

    /// Another contender's work with one bit of the last packet's tag changed, or without checks.
    struct Liar {
        honest: Box<dyn Contender>,
        opens_all: bool,
    }

    impl Contender for Liar {
        fn work(&mut self, work: Work, packets: &mut Packets, batch: usize) -> bool {
            if self.opens_all {
                return self.honest.work(work, packets, batch) || work.direction == Direction::Open;
            }
            let last = packets.buf.len() - 1;
            if work.direction == Direction::Open {
                packets.buf[last] ^= 1;
            }
            let done = self.honest.work(work, packets, batch);
            if work.direction == Direction::Seal {
                packets.buf[last] ^= 1;
            }
            done
        }
    }

    fn outcome(opens_all: Option<bool>) -> Result<(), String> {
        let args = Line::parse_from(["squall-peers", "--sizes", "4,100", "--batch", "1,8"]).args;
        let mut entrants = enter(&[Name::Squall, Name::Graviola]).entrants;
        if let Some(opens_all) = opens_all {
            let ring = enter(&[Name::Ring]).entrants.remove(0);
            let expand = ring.expand;
            entrants.push(Entrant {
                expand: Box::new(move |suite| {
                    let honest = expand(suite)?;
                    Some(Box::new(Liar { honest, opens_all }))
                }),
                ..ring
            });
        }
        check(&args, &entrants)
    }

    #[test]
    fn a_contender_that_differs_ends_the_run() {
        assert_eq!(outcome(None), Ok(()));
        assert_eq!(
            outcome(Some(false)).unwrap_err(),
            "ring and squall seal differently, from byte 32 of packet 959 on: AES-128-GCM, 4 bytes"
        );
        assert_eq!(
            outcome(Some(true)).unwrap_err(),
            "ring opens a forged packet: AES-128-GCM, 4 bytes"
        );
    }
}
