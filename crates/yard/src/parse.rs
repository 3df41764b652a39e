//! Values as people write them on a command line: sizes, seconds, counts, cores, addresses, files.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

/// Parses a group of options from a command line that has no others, for tests.
///
/// # Errors
/// The command's error for `args`.
pub fn group<A: clap::Args>(args: &[&str]) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("perf").no_binary_name(true));
    A::from_arg_matches(&command.try_get_matches_from(args)?)
}

/// Maximum number of connections, or of streams of one connection, that are measured at a time.
pub const MAX_COUNT: usize = 100_000;

/// A count of things to make: connections, streams, rounds.
pub fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=MAX_COUNT) => Ok(count),
        _ => Err(format!("give a whole number from 1 to {MAX_COUNT}")),
    }
}

/// A number of bytes: digits, then nothing, K, M or G (10^3, 10^6, 10^9), or Ki, Mi or Gi (2^10,
/// 2^20, 2^30).
pub fn size(text: &str) -> Result<u64, String> {
    let (text, kilo): (_, u64) = match text.strip_suffix('i') {
        Some(rest) if rest.ends_with(|last: char| last.is_ascii_alphabetic()) => (rest, 1 << 10),
        _ => (text, 1_000),
    };
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], kilo),
        Some((at, 'm' | 'M')) => (&text[..at], kilo.pow(2)),
        Some((at, 'g' | 'G')) => (&text[..at], kilo.pow(3)),
        _ => (text, 1),
    };
    let number: Option<u64> = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten();
    match number.and_then(|number| number.checked_mul(unit)) {
        Some(0) | None => {
            Err("give a number of bytes above zero, such as 1200, 64K, 64Ki, 10M or 1G".to_owned())
        }
        Some(bytes) => Ok(bytes),
    }
}

/// A rate in bits per second, as in iperf3: digits, then nothing, K, M or G (10^3, 10^6, 10^9).
pub fn bitrate(text: &str) -> Result<u64, String> {
    size(text)
        .ok()
        .filter(|bits| (1_000..=1_000_000_000_000).contains(bits))
        .ok_or_else(|| "give bits per second from 1K to 1000G, such as 800K, 100M or 5G".to_owned())
}

/// Seconds, possibly fractional.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds from 0.01 to 86400, such as 10 or 0.5".to_owned())
}

/// Seconds between reports; 0: none, as in iperf3.
pub fn interval(text: &str) -> Result<Duration, String> {
    (text.parse().ok())
        .filter(|seconds| *seconds == 0.0 || (0.1..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds from 0.1 to 86400, or 0 for no reports".to_owned())
}

/// A UDP port to listen on; 0: the system chooses.
pub fn port(text: &str) -> Result<u16, String> {
    (text.parse()).map_err(|_| "give a whole number from 0 to 65535".to_owned())
}

/// A UDP port to send to.
pub fn remote_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err("give a whole number from 1 to 65535".to_owned()),
    }
}

/// Where to listen.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    (text.parse()).map_err(|_| {
        "give an IP address and a port, such as 0.0.0.0:4433, [::]:4433 or 127.0.0.1:0".to_owned()
    })
}

/// An address of this machine, with an interface if it needs one (`fe80::1%eth0`); port 0.
pub fn local(text: &str) -> Result<SocketAddr, String> {
    let hint =
        || "give an IP address of this machine, such as 192.0.2.1 or fe80::1%eth0".to_owned();
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, 0).into());
    }
    // The system resolves interface names to numbers; a host name is not wanted here.
    let (ip, _interface) = text.split_once('%').ok_or_else(hint)?;
    ip.parse::<Ipv6Addr>().map_err(|_| hint())?;
    let found = (text, 0).to_socket_addrs().ok();
    found.and_then(|mut found| found.next()).ok_or_else(hint)
}

/// UDP payload of a full datagram, from what every path carries up to what a UDP datagram can hold.
pub fn payload(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(payload @ 1_200..=65_507) => Ok(payload),
        _ => Err("give a whole number from 1200 to 65507".to_owned()),
    }
}

/// The file of a chart, which is always drawn as SVG.
pub fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(suffix) if suffix.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the chart is drawn as SVG: give a file name that ends in .svg".to_owned()),
    }
}

/// A core.
pub fn core(text: &str) -> Result<usize, String> {
    (text.trim().parse()).map_err(|_| "give core numbers, such as 0 or 0,1".to_owned())
}

/// Two cores, the server's and the client's.
pub fn cores(text: &str) -> Result<(usize, usize), String> {
    text.split_once(',')
        .and_then(|(server, client)| {
            Some((server.trim().parse().ok()?, client.trim().parse().ok()?))
        })
        .ok_or_else(|| "give two core numbers, such as 0,1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_ten() {
        assert_eq!(size("1472"), Ok(1_472));
        assert_eq!(size("64K"), Ok(64_000));
        assert_eq!(size("64k"), Ok(64_000));
        assert_eq!(size("10M"), Ok(10_000_000));
        assert_eq!(size("2G"), Ok(2_000_000_000));
        assert_eq!(size("256Ki"), Ok(262_144));
        assert_eq!(size("1Gi"), Ok(1 << 30));
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for text in [
            "",
            "K",
            "0",
            "0G",
            "-1",
            "+1",
            "1.5G",
            "1T",
            "1KB",
            "1i",
            "Ki",
            "1é",
            "99999999999G",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_at_most_a_hundred_thousand() {
        assert_eq!(count("100000"), Ok(100_000));
        for text in ["0", "-1", "100001", "1K"] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_may_be_fractions_but_not_zero() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "ten"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_chart_must_be_an_svg_file() {
        for text in ["a.svg", "b/c.SVG", "a.b.svg"] {
            assert_eq!(svg(text), Ok(PathBuf::from(text)));
        }
        for text in ["", "a.png", "svg", ".svg", "a.svg.pdf"] {
            assert!(svg(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_seconds_or_zero() {
        assert_eq!(interval("0"), Ok(Duration::ZERO));
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        for text in ["0.05", "-1", "1s", "NaN", ""] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_local_address_must_be_an_ip_address() {
        assert_eq!(local("127.0.0.1"), Ok(([127, 0, 0, 1], 0).into()));
        assert!(local("::1").is_ok_and(|address| address.is_ipv6() && address.port() == 0));
        for text in [
            "",
            "localhost",
            "127.0.0.1:80",
            "127.0.0.1%lo",
            "fe80::1%nowhere",
        ] {
            assert!(local(text).is_err(), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_local_address_may_name_its_interface() {
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").expect("loopback");
        let Ok(SocketAddr::V6(address)) = local("fe80::1%lo") else {
            panic!("an address");
        };
        assert_eq!(address.scope_id().to_string(), index.trim());
    }

    #[test]
    fn cores_are_given_in_pairs() {
        assert_eq!(cores("0,1"), Ok((0, 1)));
        assert_eq!(cores("3, 2"), Ok((3, 2)));
        for text in ["0", "0,", "a,b", "0,1,2"] {
            assert!(cores(text).is_err(), "{text}");
        }
    }
}
