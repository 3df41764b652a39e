//! squall: groups of spans in one call.

use squall_protect::ablation::{self, Way};
use squall_protect::{HeaderKey, Keys, Outcome, PacketKey};

use super::super::args::{Direction, Name, Suite};
use super::super::material;
use super::super::packets::{PACKETS, Packets};
use super::{Contender, Entrant, Work};

pub(crate) fn entrant() -> Entrant {
    Entrant {
        name: Name::Squall,
        version: super::package("squall-protect"),
        kernel: kernels(),
        expand: Box::new(|suite| Some(Box::new(Squall(keys(suite))))),
    }
}

/// Each suite's kernel.
fn kernels() -> String {
    let choices = squall_protect::kernel_choices();
    let names: Vec<_> = choices
        .iter()
        .map(|choice| format!("{:?} {}", choice.suite, choice.kind.name()))
        .collect();
    names.join(", ")
}

fn keys(suite: Suite) -> Keys {
    let (packet, header) = material::own(suite);
    Keys {
        packet: PacketKey::new(&packet),
        header: HeaderKey::new(&header),
    }
}

struct Squall(Keys);

impl Contender for Squall {
    fn work(&mut self, work: Work, packets: &mut Packets, batch: usize) -> bool {
        let (keys, buf) = (&mut self.0, &mut packets.buf[..]);
        // A group never spans the last of the 64 packets and the first of the next copy.
        for copy in packets.spans.chunks_mut(PACKETS) {
            for group in copy.chunks_mut(batch) {
                match (work.direction, work.header_protection) {
                    (Direction::Seal, false) => {
                        ablation::seal(Way::AeadAlone, keys, buf, group, &[]);
                    }
                    (Direction::Seal, true) => keys.packet.seal(&keys.header, buf, group, &[]),
                    (Direction::Open, false) => {
                        ablation::open(Way::AeadAlone, keys, buf, group);
                    }
                    (Direction::Open, true) => {
                        keys.header.unprotect(buf, group);
                        keys.packet.open(buf, group, 0);
                    }
                }
            }
        }
        (packets.spans.iter()).all(|span| span.outcome == Outcome::Open)
    }
}
