//! The runner's environment.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The test cases, by what they require of an endpoint. The runner has more names than these:
/// `longrtt`, for example, is `handshake` on another network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// One connection, all files at once.
    Transfer,
    /// The same; packets carry ECN marks.
    Ecn,
    ChaCha20,
    /// The client updates the keys early.
    KeyUpdate,
    Retry,
    /// The first file on one connection, the others on a second, resumed one.
    Resumption,
    /// The same, with the other requests in early data.
    ZeroRtt,
    /// A connection for each file.
    MultiConnect,
    Http3,
    Version2,
    /// The server names a preferred address.
    ConnectionMigration,
}

impl Case {
    /// The case of a `TESTCASE`. Cases that differ only by the network are also accepted under
    /// their own names, so that they can be run by hand.
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "handshake" | "transfer" | "longrtt" | "multiplexing" | "blackhole"
            | "amplificationlimit" | "transferloss" | "transfercorruption" | "ipv6"
            | "rebind-port" | "rebind-addr" | "goodput" | "crosstraffic" => Self::Transfer,
            "ecn" => Self::Ecn,
            "chacha20" => Self::ChaCha20,
            "keyupdate" => Self::KeyUpdate,
            "retry" => Self::Retry,
            "resumption" => Self::Resumption,
            "zerortt" => Self::ZeroRtt,
            "multiconnect" | "handshakeloss" | "handshakecorruption" => Self::MultiConnect,
            "http3" => Self::Http3,
            "v2" => Self::Version2,
            "connectionmigration" => Self::ConnectionMigration,
            _ => return None,
        })
    }
}

/// The settings of an endpoint.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) role: Role,
    pub(crate) case: Case,
    pub(crate) requests: Vec<Uri>,
    pub(crate) www: PathBuf,
    pub(crate) certs: PathBuf,
    pub(crate) downloads: PathBuf,
    pub(crate) listen: SocketAddr,
    /// Addresses that take precedence over the system's resolver.
    pub(crate) resolve: Vec<(String, IpAddr)>,
    pub(crate) preferred_ipv4: Option<SocketAddrV4>,
    pub(crate) preferred_ipv6: Option<SocketAddrV6>,
}

/// Why an environment cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    Unsupported(String),
    Invalid(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "{what} is not supported"),
            Self::Invalid(what) => write!(f, "{what}"),
        }
    }
}

impl Settings {
    /// Reads the process's environment.
    pub(crate) fn from_environment() -> Result<Self, Unusable> {
        Self::read(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Unusable> {
        let role = match variable("ROLE").as_deref() {
            Some("client") => Role::Client,
            Some("server") => Role::Server,
            other => {
                let other = other.unwrap_or_default();
                let text = format!("ROLE must be client or server, not {other:?}");
                return Err(Unusable::Invalid(text));
            }
        };
        let name = variable("TESTCASE").unwrap_or_default();
        let unsupported = || Unusable::Unsupported(format!("TESTCASE {name:?}"));
        let case = Case::of(&name).ok_or_else(unsupported)?;
        let preferred_ipv4 = parsed(&variable, "PREFERRED_IPV4")?;
        let preferred_ipv6 = parsed(&variable, "PREFERRED_IPV6")?;
        let has_preferred = preferred_ipv4.is_some() || preferred_ipv6.is_some();
        if case == Case::ConnectionMigration && role == Role::Server && !has_preferred {
            let text = format!("{name} without a second address (PREFERRED_IPV4, PREFERRED_IPV6)");
            return Err(Unusable::Unsupported(text));
        }
        let requests = variable("REQUESTS").unwrap_or_default();
        let requests: Result<Vec<Uri>, _> = requests
            .split_ascii_whitespace()
            .map(|url| Uri::from_str(url).map_err(|_| invalid("REQUESTS", url)))
            .collect();
        let resolve = variable("RESOLVE").unwrap_or_default();
        let resolve: Option<Vec<_>> = resolve
            .split_ascii_whitespace()
            .map(|pair| {
                let (name, address) = pair.split_once('=')?;
                Some((name.to_owned(), address.parse().ok()?))
            })
            .collect();
        let folder = |name, usual| PathBuf::from(variable(name).unwrap_or(String::from(usual)));
        Ok(Self {
            role,
            case,
            requests: requests?,
            www: folder("WWW", "/www"),
            certs: folder("CERTS", "/certs"),
            downloads: folder("DOWNLOADS", "/downloads"),
            listen: parsed(&variable, "LISTEN")?.unwrap_or((([0; 16]), 443).into()),
            resolve: resolve.ok_or_else(|| {
                Unusable::Invalid("RESOLVE must hold pairs of name=address".into())
            })?,
            preferred_ipv4,
            preferred_ipv6,
        })
    }
}

fn invalid(name: &str, value: &str) -> Unusable {
    Unusable::Invalid(format!("{name}: {value:?} is not valid"))
}

fn parsed<T: FromStr>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<T>, Unusable> {
    variable(name)
        .map(|value| value.parse().map_err(|_| invalid(name, &value)))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Unusable> {
        Settings::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn unknown_cases_are_unsupported_and_unknown_roles_invalid() {
        let case = |name| read(&[("ROLE", "client"), ("TESTCASE", name)]).map(|read| read.case);
        assert!(matches!(case("transfer"), Ok(Case::Transfer)));
        assert!(matches!(case("rebind-addr"), Ok(Case::Transfer)));
        assert!(matches!(
            case("versionnegotiation"),
            Err(Unusable::Unsupported(_))
        ));
        let role = read(&[("ROLE", "judge"), ("TESTCASE", "transfer")]);
        assert!(matches!(role, Err(Unusable::Invalid(_))));
    }

    #[test]
    fn a_server_migrates_clients_only_to_an_address_that_it_has() {
        let server = [("ROLE", "server"), ("TESTCASE", "connectionmigration")];
        assert!(matches!(read(&server), Err(Unusable::Unsupported(_))));
        let address = ("PREFERRED_IPV4", "127.0.0.2:443");
        let settings = read(&[server[0], server[1], address]).expect("settings");
        assert_eq!(
            settings.preferred_ipv4,
            Some("127.0.0.2:443".parse().expect("an address"))
        );
        // A client needs no certificate.
        assert!(read(&[("ROLE", "client"), server[1]]).is_ok());
    }

    #[test]
    fn urls_and_addresses_are_parsed_as_lists() {
        let settings = read(&[
            ("ROLE", "client"),
            ("TESTCASE", "http3"),
            ("REQUESTS", "https://server4:443/a https://server6:443/b"),
            ("RESOLVE", "server4=127.0.0.1 server6=::1"),
        ])
        .expect("settings");
        let paths: Vec<_> = settings.requests.iter().map(Uri::path).collect();
        assert_eq!(paths, ["/a", "/b"]);
        assert_eq!(
            settings.resolve,
            [
                ("server4".to_owned(), IpAddr::from([127, 0, 0, 1])),
                (
                    "server6".to_owned(),
                    IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16])
                ),
            ]
        );
    }
}
