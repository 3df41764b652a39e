//! The command line of `squall get`, with curl's names where curl has one.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use http::{HeaderName, HeaderValue, Method, Uri};

use crate::port;

/// Download over HTTP/3, and over HTTP/2 or HTTP/1.1 from servers without it
///
/// All URLs are fetched concurrently, those on one host over one connection. Responses go to
/// standard output, or to files with -o or -O.
///
/// The exit code is curl's: for example 6 if a host is not found, 7 if it does not answer, 22 for
/// an HTTP error with -f, 28 for a timeout, 60 for an untrusted certificate, 95 for an HTTP/3
/// error.
#[derive(clap::Args)]
pub(crate) struct Get {
    /// The URL to fetch; https:// may be omitted
    #[arg(value_name = "URL", required = true, value_parser = Url)]
    pub(crate) urls: Vec<Uri>,
    /// Write to this file; give one for each URL, in the same order
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
    /// Write each response to a file in this folder, named after the last part of its URL
    #[arg(short = 'O', long, conflicts_with = "output")]
    pub(crate) remote_name: bool,
    /// Add a field to the request, or replace one
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = field)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// The request's method [default: GET, or POST with -d]
    #[arg(short = 'X', long, value_name = "METHOD")]
    pub(crate) request: Option<Method>,
    /// Send this text, or with @FILE the contents of a file (@- for standard input)
    #[arg(short, long, value_name = "DATA", conflicts_with = "head")]
    pub(crate) data: Option<String>,
    /// Request only the head of the response, and print it
    #[arg(short = 'I', long)]
    pub(crate) head: bool,
    /// Print the head of the response as well
    #[arg(short, long)]
    pub(crate) include: bool,
    /// Follow redirects
    #[arg(short = 'L', long)]
    pub(crate) location: bool,
    /// Follow at most this many redirects
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) max_redirs: u32,
    /// Fail on status 400 and above, and write nothing of such a response
    #[arg(short, long)]
    pub(crate) fail: bool,
    /// Resume a file where it ends: `-` takes its length
    #[arg(short = 'C', long, value_name = "OFFSET", value_parser = offset)]
    pub(crate) continue_at: Option<Offset>,
    /// Do not verify the server's certificate
    #[arg(short = 'k', long)]
    pub(crate) insecure: bool,
    /// Trust the certificates in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Connect to this address for a host and port
    #[arg(long, value_name = "HOST:PORT:ADDR", value_parser = resolve)]
    pub(crate) resolve: Vec<Resolve>,
    /// Use HTTP/3 only, without falling back
    #[arg(long)]
    pub(crate) http3_only: bool,
    /// Give up connecting after this many seconds
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) connect_timeout: Duration,
    /// Give up after this many seconds in total
    #[arg(short, long, value_name = "SECS", value_parser = seconds)]
    pub(crate) max_time: Option<Duration>,
    /// Print no progress bars and no messages
    #[arg(short, long)]
    pub(crate) silent: bool,
    /// Print a JSON object with what was fetched and how long it took; needs -o or -O
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where to resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offset {
    /// At the end of the existing file.
    End,
    At(u64),
}

/// An address for a host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolve {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
}

/// Reads URLs. Its errors show no password.
#[derive(Clone, Copy)]
struct Url;

impl TypedValueParser for Url {
    type Value = Uri;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Uri, clap::Error> {
        let text = value.to_string_lossy();
        url.parse_ref(command, arg, without_user(&text).as_ref())
    }
}

/// A URL without its name and password. They are never sent (RFC 9114 §4.3.1), and so that they
/// are not printed either, they are removed first.
pub(crate) fn without_user(url: &str) -> String {
    let authority = url.find("://").map_or(0, |colon| colon + 3);
    let (scheme, rest) = url.split_at(authority);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{host}{path}")
}

/// Reads the URL of something that can be fetched.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn url(text: &str) -> Result<Uri, String> {
    let whole = if text.contains("://") {
        text.to_owned()
    } else {
        format!("https://{text}")
    };
    let uri: Uri = whole.parse().map_err(|error| format!("{error}"))?;
    if uri.scheme_str() != Some("https") {
        return Err("only https:// URLs can be fetched".to_owned());
    }
    let authority = uri.authority().filter(|one| !one.host().is_empty());
    port::of(authority.ok_or("no host")?, 443)?;
    Ok(uri)
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("not NAME: VALUE")?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("{name:?} is not a field name"))?;
    let value = value
        .trim()
        .parse()
        .map_err(|_| "not a field value".to_owned())?;
    Ok((name, value))
}

fn offset(text: &str) -> Result<Offset, String> {
    match text {
        "-" => Ok(Offset::End),
        number => number
            .parse()
            .map(Offset::At)
            .map_err(|_| "not a number or -".to_owned()),
    }
}

fn resolve(text: &str) -> Result<Resolve, String> {
    let wrong = || "not HOST:PORT:ADDR".to_owned();
    let (host, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (port, address) = rest.split_once(':').ok_or_else(wrong)?;
    let address = address.trim_start_matches('[').trim_end_matches(']');
    Ok(Resolve {
        host: host.to_ascii_lowercase(),
        port: port.parse().map_err(|_| wrong())?,
        address: address.parse().map_err(|_| wrong())?,
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "not a number of seconds above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_urls_are_accepted() {
        assert_eq!(
            url("localhost:8443/a?b").unwrap(),
            "https://localhost:8443/a?b"
        );
        assert_eq!(url("https://[::1]/").unwrap().host(), Some("[::1]"));
        for wrong in [
            "http://localhost/",
            "ftp://x/",
            "https:///x",
            "",
            "https://a b/",
            "https://a:99999/",
            "https://a:0/",
            "a:x/",
        ] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn user_names_and_passwords_are_removed_from_urls() {
        for (url, expected) in [
            ("https://a:b@c:1/d@e?f@g", "https://c:1/d@e?f@g"),
            ("a:b@c", "c"),
            ("https://a@b:c@[::1]", "https://[::1]"),
            ("https://c?d@e", "https://c?d@e"),
            ("c/d@e", "c/d@e"),
        ] {
            assert_eq!(without_user(url), expected);
        }
    }

    #[test]
    fn resolve_takes_addresses_in_curls_format() {
        let at = |text: &str| resolve(text).unwrap().address.to_string();
        assert_eq!(at("a.example:443:127.0.0.1"), "127.0.0.1");
        assert_eq!(at("a.example:443:[::1]"), "::1");
        assert_eq!(at("a.example:443:::1"), "::1");
        for wrong in ["a", "a:1", "a:x:1.2.3.4", "a:1:b"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_field_needs_a_name_and_a_value() {
        assert_eq!(
            field("X-A:  b ").unwrap(),
            ("x-a".parse().unwrap(), "b".parse().unwrap())
        );
        for wrong in ["a", ": b", "a b: c", "a: \n"] {
            assert!(field(wrong).is_err() || wrong == "a: \n", "{wrong}");
        }
    }
}
