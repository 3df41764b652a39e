//! The latency spin bit (RFC 9000 §17.4, RFC 9312 §3.8.2): a square wave whose half period is a
//! round trip, for on-path observers.

use rand::Rng;
use squall_wire::Side;

/// RFC 9000 §17.4: at least one path in this many does not spin, so that not spinning does not
/// stand out.
const STILL: u32 = 16;

/// The spin bit of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spin {
    spins: bool,
    value: bool,
}

impl Spin {
    /// Decides for a new path, or a new connection id of one, whether it spins, if that is `wanted`
    /// at all. If not, it has a random value for as long as the id is used.
    pub(crate) fn draw(wanted: bool, rng: &mut impl Rng) -> Self {
        let spins = wanted && !rng.random_ratio(1, STILL);
        Self {
            spins,
            // RFC 9000 §17.4: a spinning one starts at 0.
            value: !spins && rng.random(),
        }
    }

    /// The bit of packets to be sent.
    #[inline]
    #[must_use]
    pub(crate) const fn value(self) -> bool {
        self.value
    }

    /// A packet from the peer with this bit raised the highest number: a server reflects the bit, a
    /// client inverts it.
    #[inline]
    pub(crate) fn on_newest(&mut self, side: Side, bit: bool) {
        if self.spins {
            self.value = bit ^ (side == Side::Client);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    // test: RFC 9000 §17.4
    #[test]
    fn one_path_in_sixteen_does_not_spin_and_has_a_random_value() {
        let mut rng = StdRng::from_seed([1; 32]);
        let mut draw = |wanted| (0..16_000).map(|_| Spin::draw(wanted, &mut rng)).collect();
        let drawn: Vec<Spin> = draw(true);
        let still = drawn.iter().filter(|s| !s.spins).count();
        assert!((900..1100).contains(&still), "{still}");
        let ones = drawn.iter().filter(|s| !s.spins && s.value).count();
        assert!(
            (still * 4 / 10..still * 6 / 10).contains(&ones),
            "{ones} of {still}"
        );
        assert!(drawn.iter().all(|s| !s.spins || !s.value));
        let unwanted: Vec<Spin> = draw(false);
        assert!(unwanted.iter().all(|s| !s.spins));
        assert!(unwanted.iter().any(|s| s.value) && unwanted.iter().any(|s| !s.value));
    }

    #[test]
    fn a_client_inverts_the_spin_bit_and_a_server_reflects_it() {
        let spinning = Spin {
            spins: true,
            value: false,
        };
        let (mut client, mut server) = (spinning, spinning);
        for round in 0..10 {
            server.on_newest(Side::Server, client.value());
            assert_eq!(server.value(), round % 2 == 1);
            client.on_newest(Side::Client, server.value());
        }
        let mut still = Spin {
            spins: false,
            value: true,
        };
        still.on_newest(Side::Server, false);
        assert!(still.value());
    }
}
