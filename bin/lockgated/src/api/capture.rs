//! A client's request for a capture, checked.

use api::{
    DEFAULT_CAPTURE_PACKETS, DEFAULT_CAPTURE_RATE, DEFAULT_CAPTURE_SECONDS, DEFAULT_SNAPLEN,
    MAX_CAPTURE_PACKETS, MAX_CAPTURE_RATE, MAX_CAPTURE_SECONDS, MAX_SNAPLEN, v1,
};
use dataplane::tap::{Layers, Outcome};
use tonic::Status;

use crate::backend::CaptureOrder;

/// Reads a request.
///
/// # Errors
/// `InvalidArgument`: what is wrong with it.
pub(super) fn order(request: v1::CaptureRequest) -> Result<CaptureOrder, Status> {
    let layers = match request.layers.as_str() {
        "" | "outer" => Layers::Outer,
        "inner" => Layers::Inner,
        "both" => Layers::Both,
        other => {
            let text = format!("layers: \"{other}\" is none of outer, inner, both");
            return Err(Status::invalid_argument(text));
        }
    };
    let filter = config::parse_filter(&request.filter);
    let filter = filter.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let (snaplen, rate) = (request.snaplen.into(), request.packets_per_second.into());
    let bounds = v1::CaptureBounds {
        snaplen: bound("snaplen", snaplen, DEFAULT_SNAPLEN, MAX_SNAPLEN)?,
        packets: bound("packets", request.packets, DEFAULT_CAPTURE_PACKETS, MAX_CAPTURE_PACKETS)?,
        seconds: bound(
            "seconds",
            request.seconds.into(),
            DEFAULT_CAPTURE_SECONDS,
            MAX_CAPTURE_SECONDS,
        )?,
        packets_per_second: bound(
            "packets per second",
            rate,
            DEFAULT_CAPTURE_RATE,
            MAX_CAPTURE_RATE,
        )?,
    };
    Ok(CaptureOrder {
        port: (!request.port.is_empty()).then_some(request.port),
        layers,
        outcome: if request.drops { Outcome::Dropped } else { Outcome::Any },
        filter,
        filter_text: request.filter,
        bounds,
    })
}

/// A number within its bounds; 0 means the default.
fn bound<T: TryFrom<u64> + Copy + Into<u64>>(
    what: &str,
    value: u64,
    default: T,
    most: T,
) -> Result<T, Status> {
    if value == 0 {
        return Ok(default);
    }
    let most = most.into();
    let fits = T::try_from(value).ok().filter(|_| value <= most);
    fits.ok_or_else(|| Status::invalid_argument(format!("{what}: {value} is more than {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(request: v1::CaptureRequest) -> String {
        order(request).expect_err("a mistake").message().to_owned()
    }

    #[test]
    fn what_is_not_said_has_a_default_and_every_bound_holds() {
        let plain = order(v1::CaptureRequest::default()).unwrap();
        assert_eq!((plain.port, plain.layers, plain.outcome), (None, Layers::Outer, Outcome::Any));
        let v1::CaptureBounds { snaplen, packets, seconds, packets_per_second } = plain.bounds;
        assert_eq!((snaplen, packets, seconds, packets_per_second), (96, 10_000, 60, 5000));
        let of = v1::CaptureRequest::default;
        assert_eq!(
            message(v1::CaptureRequest { snaplen: 9217, ..of() }),
            "snaplen: 9217 is more than 9216"
        );
        assert!(message(v1::CaptureRequest { packets: 1 << 40, ..of() }).contains("1000000"));
        assert!(message(v1::CaptureRequest { seconds: 3601, ..of() }).contains("3600"));
        assert!(
            message(v1::CaptureRequest { packets_per_second: u32::MAX, ..of() }).contains("100000")
        );
        assert!(message(v1::CaptureRequest { layers: "all".into(), ..of() }).contains("both"));
        assert!(message(v1::CaptureRequest { filter: "tpc".into(), ..of() }).contains("\"tcp\""));
    }
}
