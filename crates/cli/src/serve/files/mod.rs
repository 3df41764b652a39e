//! Files of a folder as responses, independent of the transport.
//!
//! ```text
//!   path         what a request names below the root
//!   entry        the cache: a hit is answered at once
//!   root         a miss: opened below the root, on another thread
//!   encoding     which of the encoded siblings (.br, .zst, .gz)
//!   conditional  304, 412, 206, 416
//!   reply        a cached file as HTTP/3 sends it, without a request or a response
//!   listing      a folder without an index, with --browse
//! ```

mod conditional;
mod encoding;
mod entry;
mod listing;
mod path;
mod reply;
mod root;
mod types;

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use squall_h3::RequestHead;
use squall_h3::server::Reply;
use tokio::task::spawn_blocking;

use self::conditional::{Part, Verdict};
use self::entry::{Cache, Content, Entry, Form};
use self::path::Target;
use self::root::Root;
use super::body::Body;
use super::reader::{Pool, Reader};

/// The file that is served for a folder.
const INDEX: &[u8] = b"index.html";

/// The response to a request.
pub(crate) enum Answer {
    /// It is ready: the file is cached, or there is nothing to send.
    Ready(Response<Body>),
    /// The file system has to be accessed.
    Later(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

/// A folder that is served.
#[derive(Clone, Debug)]
pub(crate) struct Files(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: Root,
    cache: Cache,
    pool: Arc<Pool>,
    browse: bool,
}

/// The target of a path.
enum Found {
    File(Arc<Entry>),
    /// A folder whose path lacks the trailing slash.
    Folder,
    /// The listing of a folder.
    List(String),
}

impl Files {
    /// Serves a folder, with up to `cache` bytes of small files in memory. `browse` lists folders
    /// that have no index.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn open(folder: &Path, cache: usize, browse: bool) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            root: Root::open(folder)?,
            cache: Cache::new(cache),
            pool: Arc::default(),
            browse,
        })))
    }

    /// The response to a plain GET of a small cached file, encoded for HTTP/3 with these additional
    /// fields, and the length of its body. `None` for anything else: see
    /// [`respond`](Self::respond).
    pub(crate) fn reply(
        &self,
        head: &RequestHead<'_>,
        extra_fields: &[(HeaderName, HeaderValue)],
    ) -> Option<(Reply, u64)> {
        if head.method() != Method::GET.as_str() {
            return None;
        }
        let path = head.path()?.split('?').next()?;
        if head.fields().any(|(name, _)| is_condition(name)) {
            return None;
        }
        let target = Target::parse(path)?;
        let entry = self.0.cache.get(&self.0.root, target.key())?;
        let accepted = head
            .fields()
            .filter(|(name, _)| *name == b"accept-encoding");
        let form = entry.choose(accepted.map(|(_, value)| value))?;
        let Content::Memory(body) = &form.content else {
            return None;
        };
        let reply = form.reply.get(|| {
            let response = self
                .0
                .send_form(&entry, form, &Method::GET, &HeaderMap::new());
            let (mut head, _) = response.into_parts();
            super::fields::add_missing(&mut head.headers, extra_fields);
            Response::from_parts(head, body.clone())
        });
        Some((reply, form.len))
    }

    /// Answers a request. `path` and `query` are those of its URI. A cached file is answered
    /// without any allocation except for the response's fields.
    pub(crate) fn respond(
        &self,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Answer {
        if method != Method::GET && method != Method::HEAD {
            let mut response = short(StatusCode::METHOD_NOT_ALLOWED);
            set(&mut response, ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Answer::Ready(response);
        }
        let Some(target) = Target::parse(path) else {
            return Answer::Ready(short(StatusCode::NOT_FOUND));
        };
        if let Some(entry) = self.0.cache.get(&self.0.root, target.key()) {
            return Answer::Ready(self.0.send(&entry, method, headers));
        }
        let inner = Arc::clone(&self.0);
        let (method, path, headers) = (method.clone(), path.to_owned(), headers.clone());
        let query = query.map(str::to_owned);
        Answer::Later(Box::pin(async move {
            let finder = Arc::clone(&inner);
            let found = spawn_blocking(move || {
                let target = Target::parse(&path).ok_or(io::ErrorKind::NotFound)?;
                let found = finder.find(&target)?;
                Ok((found, target.folder_uri()))
            });
            match found
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)))
            {
                Ok((Found::File(entry), _)) => inner.send(&entry, &method, &headers),
                Ok((Found::Folder, uri)) => redirect(uri, query.as_deref()),
                Ok((Found::List(page), _)) => list(page, &method),
                Err(error) => short(status_of(&error)),
            }
        }))
    }
}

impl Inner {
    /// Accesses the file system. Blocks.
    fn find(&self, target: &Target<'_>) -> io::Result<Found> {
        let folder = target.name();
        let index;
        let name = if !target.is_folder() {
            folder
        } else if folder.is_empty() {
            INDEX
        } else {
            index = [folder, b"/", INDEX].concat();
            &index
        };
        match Entry::load(&self.root, target.key(), name) {
            Ok(Some(entry)) => Ok(Found::File(self.cache.insert(entry))),
            Ok(None) if !target.is_folder() && self.root.look(folder)?.is_dir() => {
                Ok(Found::Folder)
            }
            Ok(None) => Err(io::ErrorKind::NotFound.into()),
            Err(error) if is_absent(&error) && target.is_folder() && self.browse => {
                listing::page(&self.root, folder).map(Found::List)
            }
            // Windows cannot open folders.
            Err(error) if cfg!(windows) && !target.is_folder() => match self.root.look(folder) {
                Ok(metadata) if metadata.is_dir() => Ok(Found::Folder),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The response with a file, with a part of it, or without content.
    fn send(&self, entry: &Entry, method: &Method, headers: &HeaderMap) -> Response<Body> {
        let accepted = headers.get_all(ACCEPT_ENCODING).iter();
        let Some(form) = entry.choose(accepted.map(HeaderValue::as_bytes)) else {
            return short(StatusCode::NOT_FOUND);
        };
        self.send_form(entry, form, method, headers)
    }

    fn send_form(
        &self,
        entry: &Entry,
        form: &Form,
        method: &Method,
        headers: &HeaderMap,
    ) -> Response<Body> {
        let verdict = conditional::evaluate(headers, form.validators());
        if verdict == Verdict::Failed {
            return short(StatusCode::PRECONDITION_FAILED);
        }
        let mut response = Response::new(Body::Empty);
        let fields = response.headers_mut();
        fields.reserve(8);
        fields.insert(ETAG, form.etag.clone());
        if let Some(modified) = &form.last_modified {
            fields.insert(LAST_MODIFIED, modified.clone());
        }
        if entry.varies() {
            fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
        }
        if verdict == Verdict::NotModified {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        let part = conditional::part(method, headers, form.validators(), form.len);
        let (first, len) = match part {
            Part::Whole => {
                fields.insert(CONTENT_LENGTH, form.content_length.clone());
                (0, form.len)
            }
            Part::Range { first, last } => {
                let len = last - first + 1;
                fields.insert(CONTENT_LENGTH, len.into());
                fields.insert(CONTENT_RANGE, range(&format!("{first}-{last}"), form.len));
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                (first, len)
            }
            Part::Unsatisfiable => {
                fields.insert(CONTENT_RANGE, range("*", form.len));
                fields.insert(CONTENT_LENGTH, 0.into());
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                return response;
            }
        };
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, entry.content_type.clone());
        if let Some(coding) = &form.content_encoding {
            fields.insert(CONTENT_ENCODING, coding.clone());
        }
        if method == Method::HEAD {
            return response;
        }
        *response.body_mut() = match &form.content {
            Content::Memory(bytes) => {
                // Content in memory is small.
                let (first, len) = (first as usize, len as usize);
                Body::Whole(bytes.slice(first..first + len))
            }
            Content::Disk(file) => {
                let pool = Arc::clone(&self.pool);
                Body::File(Reader::new(Arc::clone(file), pool, first, len))
            }
        };
        response
    }
}

/// Whether a response depends on a field other than Accept-Encoding.
fn is_condition(name: &[u8]) -> bool {
    name == b"range" || name.starts_with(b"if-")
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

fn status_of(error: &io::Error) -> StatusCode {
    /// Too many symbolic links; `ErrorKind` has no stable name for it.
    const LOOP: i32 = 40;
    match error.kind() {
        _ if is_absent(error) => StatusCode::NOT_FOUND,
        _ if cfg!(target_os = "linux") && error.raw_os_error() == Some(LOOP) => {
            StatusCode::NOT_FOUND
        }
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn set(response: &mut Response<Body>, name: HeaderName, value: HeaderValue) {
    response.headers_mut().insert(name, value);
}

/// Content-Range (RFC 9110 §14.4).
fn range(part: &str, len: u64) -> HeaderValue {
    // Digits always form a valid value.
    HeaderValue::try_from(format!("bytes {part}/{len}"))
        .unwrap_or_else(|_| HeaderValue::from_static("bytes */*"))
}

/// A response whose text is its status.
pub(crate) fn short(status: StatusCode) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut response = Response::new(Body::text(reason));
    *response.status_mut() = status;
    set(
        &mut response,
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    set(&mut response, CONTENT_LENGTH, reason.len().into());
    response
}

/// Redirects to the folder's path with a trailing slash.
fn redirect(mut uri: String, query: Option<&str>) -> Response<Body> {
    if let Some(query) = query {
        uri.push('?');
        uri.push_str(query);
    }
    let mut response = short(StatusCode::MOVED_PERMANENTLY);
    match HeaderValue::try_from(uri) {
        Ok(uri) => set(&mut response, LOCATION, uri),
        Err(_) => return short(StatusCode::NOT_FOUND),
    }
    response
}

fn list(page: String, method: &Method) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let fields = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (CONTENT_LENGTH, page.len().into()),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(listing::POLICY),
        ),
    ];
    for (name, value) in fields {
        set(&mut response, name, value);
    }
    if method == Method::GET {
        *response.body_mut() = Body::Whole(page.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::serve::scratch::Scratch;

    struct Site {
        scratch: Scratch,
        files: Files,
        runtime: tokio::runtime::Runtime,
    }

    impl Site {
        fn new(name: &str, browse: bool) -> Self {
            let scratch = Scratch::new(name);
            scratch.write("index.html", b"<p>root");
            scratch.write("a/index.html", b"<p>a");
            scratch.write("b/file.txt", b"0123456789");
            scratch.write("b/app.js", b"identity");
            scratch.write("b/app.js.br", b"br");
            scratch.write("b/app.js.gz", b"gzip!");
            scratch.write("b/large", &vec![7; 300_000]);
            scratch.write("b/large.gz", &vec![8; 100_000]);
            scratch.write("empty", b"");
            scratch.write("only.css.br", b"br");
            let files = Files::open(scratch.path(), 1 << 20, browse).expect("a folder");
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime");
            Self {
                scratch,
                files,
                runtime,
            }
        }

        /// Asks twice: the cached answer must equal the first one.
        fn ask(
            &self,
            method: &Method,
            uri: &str,
            fields: &[(&str, &str)],
        ) -> (u16, HeaderMap, Vec<u8>) {
            let first = self.ask_once(method, uri, fields);
            assert_eq!(first, self.ask_once(method, uri, fields), "{uri}");
            first
        }

        fn ask_once(
            &self,
            method: &Method,
            uri: &str,
            fields: &[(&str, &str)],
        ) -> (u16, HeaderMap, Vec<u8>) {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                let name: HeaderName = name.parse().expect("a name");
                headers.append(name, value.parse().expect("a value"));
            }
            let (path, query) = match uri.split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (uri, None),
            };
            self.runtime.block_on(async {
                let response = match self.files.respond(method, path, query, &headers) {
                    Answer::Ready(response) => response,
                    Answer::Later(later) => later.await,
                };
                let (head, body) = response.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                (head.status.as_u16(), head.headers, body.to_vec())
            })
        }

        fn get(&self, uri: &str, fields: &[(&str, &str)]) -> (u16, HeaderMap, Vec<u8>) {
            self.ask(&Method::GET, uri, fields)
        }
    }

    #[test]
    fn paths_reach_only_files_below_the_root() {
        let site = Site::new("paths", false);
        std::fs::create_dir(site.scratch.path().join("c")).expect("a folder");
        let cases: &[(&str, u16, &[u8])] = &[
            ("/", 200, b"<p>root"),
            ("//", 200, b"<p>root"),
            ("/index.html", 200, b"<p>root"),
            ("/a/", 200, b"<p>a"),
            ("/a", 301, b"Moved Permanently"),
            ("/a/index.html", 200, b"<p>a"),
            ("/a/index.html/", 404, b"Not Found"),
            ("/b/file.txt", 200, b"0123456789"),
            ("/b//file.txt", 200, b"0123456789"),
            ("/b/file%2etxt", 200, b"0123456789"),
            ("/b/file.txt/", 404, b"Not Found"),
            ("/b/file.txt/x", 404, b"Not Found"),
            ("/b/", 404, b"Not Found"),
            ("/c/", 404, b"Not Found"),
            ("/b/app.js.br", 200, b"br"),
            ("/empty", 200, b""),
            ("/only.css", 404, b"Not Found"),
            ("/../b/file.txt", 404, b"Not Found"),
            ("/missing", 404, b"Not Found"),
            ("*", 404, b"Not Found"),
        ];
        for (path, status, body) in cases {
            let (got, headers, content) = site.get(path, &[("accept-encoding", "br;q=0")]);
            assert_eq!(got, *status, "{path}");
            assert_eq!(content, *body, "{path}");
            let len = headers[CONTENT_LENGTH].to_str().expect("digits");
            assert_eq!(len, body.len().to_string(), "{path}");
        }
        let too_long = format!("/{}", "x".repeat(300));
        assert_eq!(site.get(&too_long, &[]).0, 404);
    }

    #[test]
    fn a_folder_without_a_trailing_slash_is_redirected() {
        let site = Site::new("redirect", false);
        let cases = [
            ("/a", "/a/"),
            ("/a?b=c", "/a/?b=c"),
            ("//a", "/a/"),
            ("/%61", "/a/"),
        ];
        for (uri, location) in cases {
            let (status, headers, _) = site.get(uri, &[]);
            assert_eq!(status, 301);
            assert_eq!(headers[LOCATION], location, "{uri}");
        }
    }

    #[test]
    fn methods_other_than_get_and_head_are_rejected() {
        let site = Site::new("methods", false);
        for method in [
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::OPTIONS,
            Method::TRACE,
        ] {
            let (status, headers, _) = site.ask(&method, "/index.html", &[]);
            assert_eq!(status, 405, "{method}");
            assert_eq!(headers[ALLOW], "GET, HEAD");
        }
    }

    #[test]
    fn a_head_response_has_the_fields_of_get_and_no_content() {
        let site = Site::new("head", true);
        for path in ["/", "/b/file.txt", "/b/large", "/b/app.js", "/b/", "/empty"] {
            let (status, headers, _) = site.get(path, &[("accept-encoding", "gzip")]);
            let head = site.ask(&Method::HEAD, path, &[("accept-encoding", "gzip")]);
            assert_eq!(head, (status, headers, Vec::new()), "{path}");
        }
    }

    #[test]
    fn ranges_are_served_from_memory_and_from_disk() {
        let site = Site::new("parts", false);
        let (status, headers, body) = site.get("/b/file.txt", &[("range", "bytes=2-4")]);
        assert_eq!((status, &body[..]), (206, &b"234"[..]));
        assert_eq!(headers[CONTENT_RANGE], "bytes 2-4/10");
        assert_eq!(headers[CONTENT_LENGTH], "3");
        assert_eq!(headers[CONTENT_TYPE], "text/plain; charset=utf-8");
        let (status, headers, body) = site.get("/b/large", &[("range", "bytes=-200000")]);
        assert_eq!((status, body.len()), (206, 200_000));
        assert_eq!(headers[CONTENT_RANGE], "bytes 100000-299999/300000");
        let (status, headers, body) = site.get("/b/large", &[("range", "bytes=300000-")]);
        assert_eq!((status, body.len()), (416, 0));
        assert_eq!(headers[CONTENT_RANGE], "bytes */300000");
        // A range of an encoded form is a range of that form's bytes.
        let gzip = [("range", "bytes=99999-"), ("accept-encoding", "gzip")];
        let (status, headers, body) = site.get("/b/large", &gzip);
        assert_eq!((status, &body[..]), (206, &[8][..]));
        assert_eq!(headers[CONTENT_RANGE], "bytes 99999-99999/100000");
        assert_eq!(headers[CONTENT_ENCODING], "gzip");
    }

    #[test]
    fn precompressed_siblings_are_negotiated_and_have_their_own_tags() {
        let site = Site::new("siblings", false);
        let cases = [
            ("gzip, br", "br", Some("br")),
            ("gzip", "gzip!", Some("gzip")),
            ("zstd", "identity", None),
        ];
        let mut tags = Vec::new();
        for (accepted, content, coding) in cases {
            let (status, headers, body) = site.get("/b/app.js", &[("accept-encoding", accepted)]);
            assert_eq!((status, &body[..]), (200, content.as_bytes()), "{accepted}");
            let got = headers
                .get(CONTENT_ENCODING)
                .map(|coding| coding.to_str().expect("text"));
            assert_eq!(got, coding);
            assert_eq!(headers[VARY], "accept-encoding");
            assert_eq!(headers[CONTENT_TYPE], "text/javascript; charset=utf-8");
            let tag = headers[ETAG].to_str().expect("text").to_owned();
            let fields = [("accept-encoding", accepted), ("if-none-match", &tag)];
            let (status, headers, body) = site.get("/b/app.js", &fields);
            assert_eq!((status, body.len()), (304, 0));
            assert_eq!(headers[VARY], "accept-encoding");
            assert_eq!(headers[ETAG], tag.as_str());
            assert!(!headers.contains_key(CONTENT_LENGTH));
            tags.push(tag);
        }
        tags.dedup();
        assert_eq!(tags.len(), 3, "{tags:?}");
        assert!(!site.get("/b/file.txt", &[]).1.contains_key(VARY));
    }

    #[test]
    fn last_modified_is_a_validator() {
        let site = Site::new("dates", false);
        let modified = site.get("/b/file.txt", &[]).1[LAST_MODIFIED].clone();
        let modified = modified.to_str().expect("text");
        let ask = |name| site.get("/b/file.txt", &[(name, modified)]).0;
        assert_eq!(ask("if-modified-since"), 304);
        assert_eq!(ask("if-unmodified-since"), 200);
        let (status, ..) = site.get("/b/file.txt", &[("if-match", "\"x\"")]);
        assert_eq!(status, 412);
    }

    #[test]
    fn folders_are_listed_only_if_enabled() {
        let site = Site::new("browse", true);
        let (status, headers, body) = site.get("/b/", &[]);
        assert_eq!(status, 200);
        assert_eq!(headers[CONTENT_SECURITY_POLICY], listing::POLICY);
        let page = String::from_utf8(body).expect("text");
        assert!(page.contains("file.txt"), "{page}");
        // An index stays an index, and so does a folder without a slash.
        assert_eq!(site.get("/a/", &[]).2, b"<p>a");
        assert_eq!(site.get("/b", &[]).0, 301);
        assert_eq!(site.get("/missing/", &[]).0, 404);
        assert_eq!(site.get("/b/file.txt/", &[]).0, 404);
        assert_eq!(Site::new("no-browse", false).get("/b/", &[]).0, 404);
    }
}
