//! The bounds that servers and clients put on services and bodies, each under one name.

use http::{Request, Response};
use tower_service::Service;

use crate::body::Body;
use crate::error::BoxError;

/// A body that can be sent: every [`http_body::Body`] that may move to another thread and whose
/// error is a boxable [`std::error::Error`].
pub trait SendBody: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static {}

impl<B> SendBody for B where B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static {}

/// A service that answers HTTP/3 requests: every [`tower_service::Service`] from
/// [`Request<Body>`](Body) to a [`Response`] with a [`SendBody`], such as an `axum::Router`. Its
/// clones serve the requests of other connections and tasks.
pub trait HttpService:
    Service<
        Request<Body>,
        Response = Response<<Self as HttpService>::ResponseBody>,
        Future: Send + 'static,
        Error: Into<BoxError>,
    > + Clone
    + Send
    + 'static
{
    /// The body of responses.
    type ResponseBody: SendBody;
}

impl<S, B> HttpService for S
where
    S: Service<
            Request<Body>,
            Response = Response<B>,
            Future: Send + 'static,
            Error: Into<BoxError>,
        > + Clone
        + Send
        + 'static,
    B: SendBody,
{
    type ResponseBody = B;
}
