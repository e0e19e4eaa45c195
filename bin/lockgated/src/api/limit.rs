//! Limits the number of calls in progress by user ([`CallBudget`]), whole answers ([`AnswerTurns`])
//! and the size of requests by call and user ([`CALL_LIMITS`](super::call_limits::CALL_LIMITS)). A
//! request is read into memory before its call is looked at, so its size is bounded here, in front
//! of the calls.

use std::pin::Pin;
use std::task::{Context, Poll};

use api::{ADMIN_GROUP, MAX_SMALL_REQUEST_BYTES};
use http_body_util::{BodyExt, Limited};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::call_limits::{AnswerKind, AnswerTurns, RequestSize, limit_of};
use super::calls::{CallBudget, WatchedBody};
use super::listen::ConnectionInfo;
use super::peer::Peer;

/// Returns the limits, to be laid around the service.
pub(super) fn layer() -> RequestLimits {
    RequestLimits(CallBudget::default(), AnswerTurns::default())
}

/// Layer of [`LimitedService`].
#[derive(Clone)]
pub(super) struct RequestLimits(CallBudget, AnswerTurns);

impl<S> Layer<S> for RequestLimits {
    type Service = LimitedService<S>;

    fn layer(&self, inner: S) -> LimitedService<S> {
        LimitedService { inner, budget: self.0.clone(), turns: self.1.clone() }
    }
}

/// Service behind the limits.
#[derive(Clone)]
pub(super) struct LimitedService<S> {
    inner: S,
    budget: CallBudget,
    turns: AnswerTurns,
}

/// Returns the largest size of a request to `path`.
fn size(path: &str, may_change: impl FnOnce() -> bool) -> RequestSize {
    match limit_of(path) {
        Some(limit) if limit.request == RequestSize::Large && may_change() => RequestSize::Large,
        _ => RequestSize::Small,
    }
}

impl<S, B> Service<Request<Body>> for LimitedService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    B: Default + Send + 'static,
{
    type Response = Response<WatchedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<ConnectionInfo>();
        let peer = Peer::of(connection);
        let refusal = connection.and_then(|connection| connection.refusal);
        let admitted = match refusal {
            Some(refusal) => Err(refusal.to_string()),
            None => self.budget.admit(peer.map(|peer| peer.uid.0)),
        };
        let permit = match admitted {
            Ok(permit) => permit,
            Err(refusal) => {
                let refused = Status::resource_exhausted(refusal).into_http();
                return Box::pin(async move { Ok(refused.map(WatchedBody::unwatched)) });
            }
        };
        let end = connection.map(|connection| connection.end.clone());
        // The one that is ready is used; its copy has to become so.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let may_change = || peer.is_some_and(Peer::may_change);
        let request = match size(request.uri().path(), may_change) {
            RequestSize::Large => request,
            RequestSize::Small => request.map(|body| {
                Body::new(Limited::new(body, MAX_SMALL_REQUEST_BYTES).map_err(too_large))
            }),
        };
        let limit = limit_of(request.uri().path());
        let is_whole = limit.is_some_and(|limit| limit.answer == AnswerKind::Whole);
        let turns = Some(self.turns.clone()).filter(|_| is_whole);
        Box::pin(async move {
            let turn = match turns {
                Some(turns) => Some(turns.take(peer.map(|peer| peer.uid.0)).await),
                None => None,
            };
            let answer = inner.call(request).await?;
            Ok(answer.map(|body| WatchedBody::new(body, (permit, turn), end)))
        })
    }
}

/// The refusal of a request that goes beyond [`RequestSize::Small`].
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
    fn only_administrators_send_large_requests() {
        let of =
            |call: &str, may_change| size(&format!("/lockgate.v1.Gateway{call}"), || may_change);
        for call in ["/Apply", "/ChangePolicies", "/ChangeEndpoints"] {
            assert_eq!(of(call, true), RequestSize::Large, "{call}");
            assert_eq!(of(call, false), RequestSize::Small, "{call}");
        }
        for call in ["/Explain", "/ShowPorts", "/Nothing"] {
            assert_eq!(of(call, true), RequestSize::Small, "{call}");
        }
    }
}
