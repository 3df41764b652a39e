//! Finds a client's server: the host's addresses, and the first of them that answers.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use squall_yard::error::{Failure, Result};
use squall_yard::{interrupt, parse};

use super::args::Client;
use super::endpoint::Unable;

/// The default port.
const PORT: u16 = 4433;

/// The host's name, and its addresses in the wanted families, in the system's order.
pub(crate) fn resolve(args: &Client) -> Result<(String, Vec<SocketAddr>)> {
    let (host, port) = split(&args.server)?;
    let port = match (args.port, port) {
        (Some(_), Some(_)) => {
            return Err(Failure::new("the port is given twice: omit -p or :PORT"));
        }
        (one, other) => one.or(other).unwrap_or(PORT),
    };
    let all = (host.as_str(), port).to_socket_addrs();
    let mut addresses: Vec<SocketAddr> = all.into_iter().flatten().collect();
    if addresses.is_empty() {
        return Err(Failure::new(format!(
            "cannot resolve {host}: check the name, or give an IP address"
        )));
    }
    addresses.retain(|address| args.family.suits(*address));
    if let Some(local) = args.bind {
        if !args.family.suits(local) {
            let (ip, family) = (local.ip(), args.family.name());
            return Err(Failure::new(format!("-B {ip} is not an {family} address")));
        }
        addresses.retain(|address| address.is_ipv4() == local.is_ipv4());
    }
    if addresses.is_empty() {
        let wanted = match args.bind {
            Some(local) if local.is_ipv4() => "IPv4",
            Some(_) => "IPv6",
            None => args.family.name(),
        };
        return Err(Failure::new(format!("{host} has no {wanted} address")));
    }
    Ok((host, addresses))
}

/// The result of the first address that can be reached.
///
/// # Errors
/// That address fails for another reason, or none can be reached.
pub(crate) fn first<T>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> std::result::Result<T, Unable>,
) -> Result<T> {
    let mut failures: Vec<String> = Vec::new();
    for &address in addresses {
        match attempt(address) {
            Ok(found) => return Ok(found),
            Err(unable) if unable.is_unreachable && !interrupt::raised() => {
                failures.push(unable.failure.to_string());
            }
            Err(unable) => return Err(unable.failure),
        }
    }
    Err(Failure::new(failures.join("; ")))
}

/// `HOST[:PORT]`; an IPv6 address is in brackets if a port follows.
fn split(text: &str) -> Result<(String, Option<u16>)> {
    let wrong = || {
        Failure::new(format!(
            "{text:?} is not HOST or HOST:PORT: write an IPv6 address with a port as [ADDR]:PORT"
        ))
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok((text.to_owned(), None));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']').ok_or_else(wrong)? {
            (host, "") => (host, None),
            (host, tail) => (host, Some(tail.strip_prefix(':').ok_or_else(wrong)?)),
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port
        .map(|port| parse::remote_port(port).map_err(|_| wrong()))
        .transpose()?;
    if host.is_empty() {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_address_falls_back_to_the_next() {
        let addresses = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let unable = |address: SocketAddr, is_unreachable| Unable {
            failure: Failure::new(format!("no {}", address.port())),
            is_unreachable,
        };
        let found = first(&addresses, |address| match address.port() {
            1 => Err(unable(address, true)),
            port => Ok(port),
        });
        assert_eq!(found.expect("the second"), 2);
        // The error names all that were tried.
        let none = first(&addresses, |address| Err::<(), _>(unable(address, true)));
        assert_eq!(none.expect_err("none").to_string(), "no 1; no 2; no 3");
        // A server that answers but cannot be trusted is the intended one.
        let wrong = first(&addresses, |address| {
            Err::<(), _>(unable(address, address.port() == 1))
        });
        assert_eq!(wrong.expect_err("the second").to_string(), "no 2");
    }

    #[test]
    fn hosts_and_ports_are_parsed() {
        let ok = |text: &str| split(text).expect(text);
        assert_eq!(ok("example.org"), ("example.org".to_owned(), None));
        assert_eq!(ok("example.org:443"), ("example.org".to_owned(), Some(443)));
        assert_eq!(ok("::1"), ("::1".to_owned(), None));
        assert_eq!(ok("[::1]"), ("::1".to_owned(), None));
        assert_eq!(ok("[::1]:443"), ("::1".to_owned(), Some(443)));
        assert_eq!(ok("127.0.0.1:1"), ("127.0.0.1".to_owned(), Some(1)));
        for text in [
            "",
            ":443",
            "host:",
            "host:70000",
            "host:0",
            "[::1",
            "[::1]443",
            "a:b:c",
        ] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
