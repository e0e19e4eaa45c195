//! Limits the number of calls in progress by user ([`CallBudget`]), whole answers
//! ([`answer_turns`]) and the size of requests by call and user
//! ([`CALL_LIMITS`](super::call_limits::CALL_LIMITS)). A request is read into memory before its
//! call is looked at, so its size is bounded here, in front of the calls.
//!
//! A call runs to its end after the client has gone, and keeps its place until then: otherwise a
//! client could begin work without limit and reset each stream.

use std::panic;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use api::{ADMIN_GROUP, MAX_SMALL_REQUEST_BYTES, REQUEST_TIME};
use http_body_util::{BodyExt, Limited};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::call_limits::{AnswerKind, CallLimit, RequestSize, answer_turns, limit_of};
use super::calls::{CallBudget, WatchedBody};
use super::listen::ConnectionInfo;
use crate::fair_turns::{FairTurns, WorkCaller};

/// Longest time of a call whose client has been refused or has gone. The body of a stream is not
/// bound by the time.
const WORK_TIME: Duration = REQUEST_TIME.saturating_mul(2);

/// Returns the limits, to be laid around the service.
pub(super) fn layer() -> RequestLimits {
    RequestLimits(CallBudget::default(), answer_turns())
}

/// Layer of [`LimitedService`].
#[derive(Clone)]
pub(super) struct RequestLimits(CallBudget, FairTurns);

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
    turns: FairTurns,
}

/// Returns the largest size of a request. A large request needs the right to change the
/// configuration.
async fn size(limit: Option<&CallLimit>, may_change: impl Future<Output = bool>) -> RequestSize {
    match limit {
        Some(limit) if limit.request == RequestSize::Large && may_change.await => {
            RequestSize::Large
        }
        _ => RequestSize::Small,
    }
}

async fn may_change(connection: Option<&ConnectionInfo>) -> bool {
    match connection {
        Some(connection) => connection.may_change().await,
        None => false,
    }
}

impl<S, B> Service<Request<Body>> for LimitedService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Default + Send + 'static,
{
    type Response = Response<WatchedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        if let Some(refusal) = connection.as_ref().and_then(|connection| connection.refusal) {
            return Box::pin(async move { Ok(exhausted(refusal.to_string())) });
        }
        // The one that is ready is used; its copy has to become so.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let (budget, turns) = (self.budget.clone(), self.turns.clone());
        Box::pin(async move {
            // The user's rights may take a look-up in a directory.
            let caller = match &connection {
                Some(connection) => connection.caller().await,
                None => WorkCaller::Reader(None),
            };
            let permit = match budget.admit(caller) {
                Ok(permit) => permit,
                Err(refusal) => return Ok(exhausted(refusal)),
            };
            request.extensions_mut().insert(caller);
            let limit = limit_of(request.uri().path());
            let request = match size(limit, may_change(connection.as_ref())).await {
                RequestSize::Large => request,
                RequestSize::Small => request.map(|body| {
                    Body::new(Limited::new(body, MAX_SMALL_REQUEST_BYTES).map_err(too_large))
                }),
            };
            let is_whole = limit.is_some_and(|limit| limit.answer == AnswerKind::Whole);
            let turns = Some(turns).filter(|_| is_whole);
            let end = connection.map(|connection| connection.end);
            // A client may go away before the turn of its call: then no work begins.
            let turn = match turns {
                Some(turns) => Some(turns.take(caller).await),
                None => None,
            };
            let call = inner.call(request);
            let work = async move { (call.await, (permit, turn)) };
            match tokio::spawn(tokio::time::timeout(WORK_TIME, work)).await {
                Ok(Ok((answer, permit))) => {
                    Ok(answer?.map(|body| WatchedBody::new(body, permit, end)))
                }
                Ok(Err(_)) => Ok(unavailable("the request took too long")),
                Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
                Err(_) => Ok(unavailable("lockgated is stopping")),
            }
        })
    }
}

/// Returns the answer to a call beyond a limit.
fn exhausted<B: Default>(refusal: String) -> Response<WatchedBody<B>> {
    Status::resource_exhausted(refusal).into_http().map(WatchedBody::unwatched)
}

/// Returns the answer to a call without a result.
fn unavailable<B: Default>(reason: &str) -> Response<WatchedBody<B>> {
    Status::unavailable(reason).into_http().map(WatchedBody::unwatched)
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
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::Arc;

    use api::MAX_USER_CALLS;
    use tokio::sync::Semaphore;

    use super::*;

    /// The caller of requests without a connection.
    const CALLER: WorkCaller = WorkCaller::Reader(None);

    /// Service whose calls wait for a permit each.
    #[derive(Clone)]
    struct HeldService(Arc<Semaphore>);

    impl Service<Request<Body>> for HeldService {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let released = self.0.clone();
            Box::pin(async move {
                released.acquire().await.unwrap().forget();
                Ok(Response::new(Body::default()))
            })
        }
    }

    /// Polls a call once; the client goes away when the call is dropped.
    async fn is_pending<T>(call: &mut Pin<Box<dyn Future<Output = T> + Send>>) -> bool {
        poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await
    }

    fn request(path: &str) -> Request<Body> {
        Request::builder().uri(path).body(Body::default()).unwrap()
    }

    #[tokio::test]
    async fn call_counts_until_its_work_ends_although_its_client_has_gone() {
        let released = Arc::new(Semaphore::new(0));
        let limits = layer();
        let budget = limits.0.clone();
        let mut service = limits.layer(HeldService(released.clone()));
        for _ in 0..MAX_USER_CALLS {
            let mut call = service.call(request("/lockgate.v1.Gateway/ShowPolicies"));
            assert!(is_pending(&mut call).await);
        }
        assert!(budget.admit(CALLER).is_err());
        released.add_permits(MAX_USER_CALLS);
        while budget.admit(CALLER).is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn turn_of_a_whole_answer_lasts_until_its_work_ends() {
        let released = Arc::new(Semaphore::new(0));
        let limits = layer();
        let (budget, turns) = (limits.0.clone(), limits.1.clone());
        let mut service = limits.layer(HeldService(released.clone()));
        let mut call = service.call(request("/lockgate.v1.Gateway/ShowPorts"));
        assert!(is_pending(&mut call).await);
        drop(call);
        for _ in 0..MAX_USER_CALLS {
            // Each waits for the first, and leaves: no place stays taken.
            let mut call = service.call(request("/lockgate.v1.Gateway/ShowPorts"));
            assert!(is_pending(&mut call).await);
        }
        assert!(budget.admit(CALLER).is_ok());
        let mut next = Box::pin(turns.take(CALLER));
        let waits = poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_pending()));
        assert!(waits.await, "the first call is in progress");
        released.add_permits(1);
        drop(next.await);
    }

    #[tokio::test]
    async fn only_administrators_send_large_requests() {
        async fn of(call: &str, may_change: bool) -> RequestSize {
            let limit = limit_of(&format!("/lockgate.v1.Gateway{call}"));
            size(limit, async { may_change }).await
        }
        for call in ["/Apply", "/ChangePolicies", "/ChangeEndpoints"] {
            assert_eq!(of(call, true).await, RequestSize::Large, "{call}");
            assert_eq!(of(call, false).await, RequestSize::Small, "{call}");
        }
        for call in ["/Explain", "/ShowPorts", "/Nothing"] {
            assert_eq!(of(call, true).await, RequestSize::Small, "{call}");
        }
    }
}
