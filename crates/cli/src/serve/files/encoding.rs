//! Selects which of a file's encoded forms a client gets (RFC 9110 §12.5.3).

/// A content coding, in order of preference for clients without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// RFC 7932
    Brotli,
    /// RFC 8878
    Zstd,
    /// RFC 1952
    Gzip,
    /// Unencoded.
    Identity,
}

impl Coding {
    /// All codings, the preferred one first.
    pub(super) const ALL: [Self; 4] = [Self::Brotli, Self::Zstd, Self::Gzip, Self::Identity];

    /// The name in fields; `None` if the field is omitted.
    pub(super) fn token(self) -> Option<&'static str> {
        match self {
            Self::Brotli => Some("br"),
            Self::Zstd => Some("zstd"),
            Self::Gzip => Some("gzip"),
            Self::Identity => None,
        }
    }

    /// The suffix of the file's name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
            Self::Identity => "",
        }
    }

    fn named(name: &str) -> Option<Self> {
        let is = |token: &str| name.eq_ignore_ascii_case(token);
        Some(match name {
            _ if is("br") => Self::Brotli,
            _ if is("zstd") => Self::Zstd,
            _ if is("gzip") || is("x-gzip") => Self::Gzip,
            _ if is("identity") => Self::Identity,
            _ => return None,
        })
    }
}

/// The available coding with the highest weight in these values of Accept-Encoding. The unencoded
/// file wins over encoded forms only with a higher weight of its own. It is also sent if nothing is
/// acceptable: that serves more clients than 406 would.
pub(super) fn choose<'a>(
    accepted: impl Iterator<Item = &'a [u8]>,
    is_there: impl Fn(Coding) -> bool,
) -> Coding {
    /// A weight of 1, in thousandths.
    const FULL: u16 = 1_000;
    // By the index in `Coding::ALL`; the last is for `*`.
    let mut weights = [None; 4];
    let mut others = None;
    for value in accepted {
        let Ok(value) = std::str::from_utf8(value) else {
            continue;
        };
        for member in value.split(',') {
            let (name, weight) = weighted(member);
            if name == "*" {
                others = Some(weight);
            } else if let Some(coding) = Coding::named(name) {
                weights[coding as usize] = Some(weight);
            }
        }
    }
    let mut best = (Coding::Identity, 0);
    for coding in Coding::ALL {
        let weight = weights[coding as usize].or(others);
        let weight = match coding {
            // Acceptable without being listed, but then only as a last resort.
            Coding::Identity => weight.unwrap_or(1).min(FULL),
            _ => weight.unwrap_or(0),
        };
        if weight > best.1 && is_there(coding) {
            best = (coding, weight);
        }
    }
    best.0
}

/// A name and its weight in thousandths; an invalid weight counts as zero.
fn weighted(member: &str) -> (&str, u16) {
    let (name, parameter) = member.split_once(';').unwrap_or((member, ""));
    let parameter = parameter.trim();
    let weight = match parameter.split_once('=') {
        _ if parameter.is_empty() => 1_000,
        Some((q, weight)) if q.trim().eq_ignore_ascii_case("q") => {
            thousandths(weight.trim()).unwrap_or(0)
        }
        _ => 0,
    };
    (name.trim(), weight)
}

/// RFC 9110 §12.4.2: 0 to 1 with up to three decimals.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = decimals.bytes().map(|digit| u16::from(digit - b'0'));
    let decimals: u16 = digits
        .zip([100, 10, 1])
        .map(|(digit, unit)| digit * unit)
        .sum();
    match whole {
        "0" => Some(decimals),
        "1" if decimals == 0 => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_weight_wins_and_ties_go_by_our_preference() {
        use Coding::{Brotli, Gzip, Identity, Zstd};
        let all = &Coding::ALL[..];
        let cases: &[(&str, &[Coding], Coding)] = &[
            ("gzip", all, Gzip),
            ("x-gzip", all, Gzip),
            ("GZIP", all, Gzip),
            ("gzip, deflate, br, zstd", all, Brotli),
            ("gzip, deflate, br", &[Gzip, Identity], Gzip),
            ("gzip, deflate", &[Brotli, Identity], Identity),
            ("br;q=0.5, gzip;q=0.8", all, Gzip),
            ("br;q=0.5, gzip;q=0.8, zstd ; q=0.9", all, Zstd),
            ("br;q=0, gzip;q=0", all, Identity),
            ("br;q=0, *", all, Zstd),
            ("*", all, Brotli),
            ("*;q=0", all, Identity),
            ("*;q=0, gzip", all, Gzip),
            ("identity", all, Identity),
            ("identity, br;q=0.9", all, Identity),
            ("identity;q=0.5, br;q=0.9", all, Brotli),
            ("identity;q=0, gzip;q=0.001", all, Gzip),
            ("identity;q=0", all, Identity),
            ("br;q=0.001", all, Brotli),
            ("br;q=2", all, Identity),
            ("br;q=1.0001", all, Identity),
            ("br;q=1.000", all, Brotli),
            ("br;q=-1, gzip", all, Gzip),
            ("br;x=1, gzip", all, Gzip),
            ("", all, Identity),
            (",,;;,", all, Identity),
        ];
        for (field, there, expected) in cases {
            let values = [field.as_bytes()].into_iter();
            let chosen = choose(values, |coding| there.contains(&coding));
            assert_eq!(chosen, *expected, "{field:?} of {there:?}");
        }
        assert_eq!(choose([].into_iter(), |_| true), Identity);
    }

    #[test]
    fn several_accept_encoding_fields_form_one_list() {
        let values = [&b"gzip;q=0.5"[..], b"\xff", b"zstd"].into_iter();
        assert_eq!(choose(values, |_| true), Coding::Zstd);
    }
}
