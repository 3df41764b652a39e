//! Requests of HTTP/0.9, names of files, and addresses.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use http::Uri;

use super::Outcome;
use super::settings::Settings;

/// The request for a URL.
pub(super) fn request(url: &Uri) -> String {
    format!("GET {}\r\n", url.path())
}

/// The file that a request asks for, once its line is complete.
pub(super) fn answer(www: &Path, line: &[u8]) -> Outcome<Vec<u8>> {
    let path = std::str::from_utf8(line)?
        .strip_prefix("GET ")
        .ok_or("not a GET request")?;
    read(www, path.trim_end())
}

/// The file of a path.
pub(super) fn read(www: &Path, path: &str) -> Outcome<Vec<u8>> {
    Ok(std::fs::read(www.join(plain(path)?))?)
}

/// Where a URL's file goes.
pub(super) fn target(settings: &Settings, url: &Uri) -> Outcome<PathBuf> {
    Ok(settings.downloads.join(plain(url.path())?))
}

/// The runner's files are all in one folder.
fn plain(path: &str) -> Outcome<&str> {
    let name = path.strip_prefix('/').unwrap_or_default();
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    is_plain
        .then_some(name)
        .ok_or_else(|| format!("{path:?} is not the path of a file").into())
}

/// The address and the name of a URL's server.
pub(super) fn server<'u>(settings: &Settings, url: &'u Uri) -> Outcome<(SocketAddr, &'u str)> {
    let host = url.host().ok_or("a URL without a host")?;
    let port = url.port_u16().unwrap_or(443);
    let fixed = settings.resolve.iter().find(|(name, _)| name == host);
    let address = match fixed {
        Some((_, address)) => (*address, port).into(),
        None => {
            let mut found = (host, port).to_socket_addrs()?;
            found.next().ok_or("a host without an address")?
        }
    };
    Ok((address, host))
}
