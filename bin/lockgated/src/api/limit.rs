//! Limits the size of requests by call and user. A request is read into memory before its call is
//! looked at, so its size is bounded here, in front of the calls:
//!
//! | call | from those who may change | from others |
//! |---|---|---|
//! | Apply | a whole configuration | [`MAX_SMALL_REQUEST_BYTES`]: it is refused anyway |
//! | ChangePolicies | the same | the same |
//! | ChangeEndpoints | batch by batch, each as large | the same |
//! | Diff | a whole configuration | the same, one at a time |
//! | all others | [`MAX_SMALL_REQUEST_BYTES`] | the same |

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{ADMIN_GROUP, MAX_SMALL_REQUEST_BYTES};
use http_body_util::{BodyExt, Limited};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::listen::ConnectionInfo;
use super::peer::Peer;

/// The end of a call's path.
const APPLY: &str = "/Apply";
const DIFF: &str = "/Diff";
const CHANGE_POLICIES: &str = "/ChangePolicies";
const CHANGE_ENDPOINTS: &str = "/ChangeEndpoints";

/// The limits, to be laid around the service.
pub(super) fn layer() -> Limits {
    Limits { comparing: Arc::new(Semaphore::new(1)) }
}

/// See [`layer`].
#[derive(Clone)]
pub(super) struct Limits {
    /// Permits of readers that compare configurations and may not change anything.
    comparing: Arc<Semaphore>,
}

impl<S> Layer<S> for Limits {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner, comparing: self.comparing.clone() }
    }
}

/// A service behind the limits.
#[derive(Clone)]
pub(super) struct Limit<S> {
    inner: S,
    comparing: Arc<Semaphore>,
}

/// The size that a request may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    Small,
    /// The size of a configuration.
    Large,
    /// The size of a configuration, while no other such request is in progress.
    LargeInTurn,
}

/// Returns the size that a request to `path` may have.
fn size(path: &str, may_change: impl FnOnce() -> bool) -> Size {
    let changes =
        [APPLY, CHANGE_POLICIES, CHANGE_ENDPOINTS].iter().any(|call| path.ends_with(call));
    let diff = path.ends_with(DIFF);
    match (changes || diff) && may_change() {
        true => Size::Large,
        false if diff => Size::LargeInTurn,
        false => Size::Small,
    }
}

impl<S, B> Service<Request<Body>> for Limit<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    B: Default + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<ConnectionInfo>();
        if let Some(refusal) = connection.and_then(|connection| connection.refusal) {
            let status = Status::resource_exhausted(refusal.to_string());
            return Box::pin(async move { Ok(status.into_http()) });
        }
        // The one that is ready is used; its copy has to become so.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let peer = Peer::of(connection);
        let may_change = || peer.is_some_and(Peer::may_change);
        match size(request.uri().path(), may_change) {
            Size::Large => Box::pin(inner.call(request)),
            Size::Small => {
                let limited = |body| {
                    Body::new(Limited::new(body, MAX_SMALL_REQUEST_BYTES).map_err(too_large))
                };
                Box::pin(inner.call(request.map(limited)))
            }
            Size::LargeInTurn => {
                let comparing = self.comparing.clone();
                Box::pin(async move {
                    // Nobody closes it; were it closed, a comparison more would do no harm.
                    let _turn = comparing.acquire().await;
                    inner.call(request).await
                })
            }
        }
    }
}

/// The refusal of a request that goes beyond [`Size::Small`].
fn too_large(_: Box<dyn std::error::Error + Send + Sync>) -> Status {
    Status::resource_exhausted(format!(
        "the request is larger than {MAX_SMALL_REQUEST_BYTES} bytes; only configurations and \
         batches of endpoints are, and only root and group {ADMIN_GROUP} may send those"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configurations_are_large_and_only_admins_send_them_at_once() {
        let of =
            |call: &str, may_change| size(&format!("/lockgate.v1.Gateway{call}"), || may_change);
        assert_eq!((of("/Apply", true), of("/Apply", false)), (Size::Large, Size::Small));
        assert_eq!(of("/ChangePolicies", true), Size::Large);
        assert_eq!(of("/ChangePolicies", false), Size::Small);
        assert_eq!(of("/ChangeEndpoints", true), Size::Large);
        assert_eq!(of("/ChangeEndpoints", false), Size::Small);
        assert_eq!((of("/Diff", true), of("/Diff", false)), (Size::Large, Size::LargeInTurn));
        assert_eq!((of("/Explain", true), of("/ShowPorts", false)), (Size::Small, Size::Small));
    }
}
