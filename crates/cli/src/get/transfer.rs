//! The transfer of one URL.

use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RANGE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::{self, Get, Offset};
use super::client::{Body, Client};
use super::exit::{Code, Failed};

/// Where the bytes of a transfer go.
pub(crate) enum Target {
    Standard,
    File(PathBuf),
}

/// What is fetched, and how.
pub(crate) struct Transfer {
    pub(crate) client: Arc<Client>,
    pub(crate) args: Arc<Get>,
    pub(crate) data: Option<Bytes>,
    pub(crate) target: Target,
    pub(crate) bars: MultiProgress,
}

/// The result, with the names of curl's `-w`; times are in seconds from the start.
#[derive(Serialize)]
pub(crate) struct Fetched {
    url_effective: String,
    http_version: &'static str,
    response_code: u16,
    num_redirects: u32,
    size_download: u64,
    time_starttransfer: f64,
    time_total: f64,
    speed_download: f64,
}

impl Transfer {
    /// Fetches, and writes the response.
    pub(crate) async fn run(self, url: Uri) -> Result<Fetched, Failed> {
        let began = Instant::now();
        let offset = self.offset()?;
        let (mut url, mut method, mut redirects) = (url, self.method(), 0);
        let mut data = self.data.clone();
        let response = loop {
            let response = self
                .client
                .send(self.request(&url, &method, data.clone(), offset)?)
                .await?;
            if !self.args.location || !is_redirect(response.status()) {
                break response;
            }
            let Some(next) = target_of(&url, response.headers()) else {
                break response;
            };
            redirects += 1;
            if redirects > self.args.max_redirs {
                let text = format!("more than {} redirects", self.args.max_redirs);
                return Err(Failed::new(Code::TooManyRedirects, text));
            }
            url = next?;
            // RFC 9110 §15.4: as in browsers, a POST becomes a GET.
            if changes_method(response.status(), &method) {
                method = Method::GET;
                data = None;
            }
        };
        let started = began.elapsed();
        let status = response.status();
        if self.args.fail && status.as_u16() >= 400 {
            return Err(Failed::new(
                Code::HttpError,
                format!("the server answers {status}"),
            ));
        }
        let version = version(response.version());
        let size = self.receive(response, offset, &url).await?;
        let total = began.elapsed();
        Ok(Fetched {
            url_effective: url.to_string(),
            http_version: version,
            response_code: status.as_u16(),
            num_redirects: redirects,
            size_download: size,
            time_starttransfer: started.as_secs_f64(),
            time_total: total.as_secs_f64(),
            speed_download: size as f64 / total.max(Duration::from_nanos(1)).as_secs_f64(),
        })
    }

    fn method(&self) -> Method {
        match &self.args.request {
            Some(method) => method.clone(),
            None if self.args.head => Method::HEAD,
            None if self.data.is_some() => Method::POST,
            None => Method::GET,
        }
    }

    /// Where to resume: the length of the existing file.
    fn offset(&self) -> Result<u64, Failed> {
        match (self.args.continue_at, &self.target) {
            (Some(Offset::At(offset)), _) => Ok(offset),
            (Some(Offset::End), Target::File(file)) => match std::fs::metadata(file) {
                Ok(there) => Ok(there.len()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                Err(error) => Err(Failed::new(Code::ReadError, error)),
            },
            _ => Ok(0),
        }
    }

    fn request(
        &self,
        url: &Uri,
        method: &Method,
        data: Option<Bytes>,
        offset: u64,
    ) -> Result<Request<Full<Bytes>>, Failed> {
        let has_data = data.is_some();
        let mut request = Request::new(Full::new(data.unwrap_or_default()));
        request.method_mut().clone_from(method);
        request.uri_mut().clone_from(url);
        let headers = request.headers_mut();
        let agent = concat!("squall/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("*/*"));
        if has_data {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(CONTENT_TYPE, form);
        }
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(
                RANGE,
                range.map_err(|error| Failed::new(Code::FailedInit, error))?,
            );
        }
        for (i, (name, value)) in self.args.header.iter().enumerate() {
            // The first field of a name replaces ours; the others are added.
            if self.args.header[..i]
                .iter()
                .any(|(before, _)| before == name)
            {
                headers.append(name, value.clone());
            } else {
                headers.insert(name, value.clone());
            }
        }
        Ok(request)
    }

    /// Writes the response, and returns the length of its body.
    async fn receive(
        &self,
        response: Response<Body>,
        offset: u64,
        url: &Uri,
    ) -> Result<u64, Failed> {
        let (head, mut body) = response.into_parts();
        // RFC 9110 §15.5.17: nothing is missing.
        let is_complete = offset > 0 && head.status == StatusCode::RANGE_NOT_SATISFIABLE;
        if offset > 0
            && !is_complete
            && head.status.is_success()
            && head.status != StatusCode::PARTIAL_CONTENT
        {
            return Err(Failed::new(
                Code::RangeError,
                "the server does not send a part of it",
            ));
        }
        let mut sink = Sink::open(&self.target, offset)?;
        if self.args.include || self.args.head {
            sink.write(head_text(&head).as_bytes())?;
        }
        if is_complete {
            return Ok(0);
        }
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let bar = self.bar(length, url);
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                size += data.len() as u64;
                bar.inc(data.len() as u64);
                sink.write(&data)?;
            }
        }
        bar.finish_and_clear();
        sink.end()?;
        Ok(size)
    }

    /// A progress bar for people who wait for a file.
    fn bar(&self, length: Option<u64>, url: &Uri) -> ProgressBar {
        let shown = matches!(self.target, Target::File(_))
            && !self.args.silent
            && io::stderr().is_terminal();
        if !shown {
            return ProgressBar::hidden();
        }
        let bar = match length {
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::no_length(),
        };
        let template =
            "{msg:30!} {bar:30} {bytes:>11} of {total_bytes:>11} {bytes_per_sec:>13} {eta:>4}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(url.path().to_owned());
        self.bars.add(bar)
    }
}

/// Where bytes go.
enum Sink {
    Standard,
    File(io::BufWriter<File>),
}

impl Sink {
    fn open(target: &Target, offset: u64) -> Result<Self, Failed> {
        let Target::File(path) = target else {
            return Ok(Self::Standard);
        };
        let open = || {
            if offset == 0 {
                return File::create(path);
            }
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            file.seek(io::SeekFrom::Start(offset))?;
            Ok(file)
        };
        let failed = |error: io::Error| {
            Failed::new(
                Code::WriteError,
                format!("cannot write {}: {error}", path.display()),
            )
        };
        Ok(Self::File(io::BufWriter::with_capacity(
            1 << 18,
            open().map_err(failed)?,
        )))
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Failed> {
        let written = match self {
            Self::Standard => io::stdout().lock().write_all(data),
            Self::File(file) => file.write_all(data),
        };
        written.map_err(|error| Failed::new(Code::WriteError, format!("cannot write: {error}")))
    }

    fn end(self) -> Result<(), Failed> {
        let flushed = match self {
            Self::Standard => io::stdout().lock().flush(),
            Self::File(mut file) => file.flush(),
        };
        flushed.map_err(|error| Failed::new(Code::WriteError, format!("cannot write: {error}")))
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// RFC 9110 §15.4.2 to §15.4.4.
fn changes_method(status: StatusCode, method: &Method) -> bool {
    match status.as_u16() {
        301 | 302 => *method == Method::POST,
        303 => *method != Method::HEAD,
        _ => false,
    }
}

/// Where a redirect leads; `None` if it does not say.
fn target_of(from: &Uri, headers: &HeaderMap) -> Option<Result<Uri, Failed>> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let location = location.split('#').next().unwrap_or_default();
    let authority = from.authority()?;
    let whole = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("https://{rest}")
    } else if location.starts_with('/') {
        format!("https://{authority}{location}")
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("https://{authority}{folder}/{location}")
    };
    let whole = args::without_user(&whole);
    // No redirect leads to an unencrypted URL.
    Some(args::url(&whole).map_err(|why| {
        let text = format!("a redirect leads to {whole:?}: {why}");
        Failed::new(Code::Receive, text)
    }))
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_3 => "3",
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

/// The head of a response, as curl prints it.
fn head_text(head: &http::response::Parts) -> String {
    let mut text = format!(
        "HTTP/{} {}\r\n",
        version(head.version),
        head.status.as_u16()
    );
    for (name, value) in &head.headers {
        text.push_str(name.as_str());
        text.push_str(": ");
        text.push_str(&String::from_utf8_lossy(value.as_bytes()));
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 3986 §5.2
    #[test]
    fn redirects_are_followed_only_to_https() {
        let from = Uri::from_static("https://host:1/a/b?c");
        let to = |location: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_static(location));
            target_of(&from, &headers)
                .unwrap()
                .map(|uri| uri.to_string())
                .ok()
        };
        for (location, expected) in [
            ("/x", Some("https://host:1/x")),
            ("x", Some("https://host:1/a/x")),
            ("//other/x", Some("https://other/x")),
            ("https://other/x#part", Some("https://other/x")),
            ("http://other/x", None),
            ("file:///etc/passwd", None),
            ("https://other:99999/x", None),
            ("https://user:secret@other/x", Some("https://other/x")),
        ] {
            assert_eq!(to(location).as_deref(), expected, "{location}");
        }
        assert!(target_of(&from, &HeaderMap::new()).is_none());
    }
}
