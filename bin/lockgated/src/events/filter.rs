//! The events that a reader wants.

use api::v1::{Event, EventsRequest};
use config::nearest;

use super::{Kind, Severity};

/// The filters of a request, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    /// Empty: all.
    kinds: Vec<Kind>,
    /// Written like the times of events, so that texts compare as times do.
    since: Option<String>,
    least: Severity,
}

/// A filter names something that does not exist.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// An unknown kind.
    #[error(
        "there is no kind of event \"{kind}\"{}; lockgated(8) lists the kinds",
        .nearest.as_ref().map_or(String::new(), |word| format!("; did you mean \"{word}\"?"))
    )]
    Kind {
        /// The word that was given.
        kind: String,
        /// A kind that looks like it.
        nearest: Option<String>,
    },
    /// An unknown severity.
    #[error("\"{0}\" is no severity: error, warning, notice or info")]
    Severity(String),
    /// The text is not a time.
    #[error("\"{0}\" is no time: write it as 2026-08-30T12:00:00Z")]
    Since(String),
}

impl Filter {
    /// Checks the filters of a request.
    ///
    /// # Errors
    /// [`FilterError`]: the client must change its request.
    pub(crate) fn of(request: &EventsRequest) -> Result<Filter, FilterError> {
        let kind = |name: &String| {
            let names = Kind::ALL.iter().map(|kind| kind.name());
            let unknown =
                || FilterError::Kind { kind: name.clone(), nearest: nearest(name, names) };
            Kind::named(name).ok_or_else(unknown)
        };
        let kinds = request.kinds.iter().map(kind).collect::<Result<_, _>>()?;
        let since = request.since.as_ref().map(|text| {
            let time = humantime::parse_rfc3339_weak(text);
            let time = time.map_err(|_| FilterError::Since(text.clone()))?;
            Ok(humantime::format_rfc3339_nanos(time).to_string())
        });
        let severity = |word: &String| {
            let found = Severity::ALL.into_iter().find(|severity| severity.word() == word);
            found.ok_or_else(|| FilterError::Severity(word.clone()))
        };
        let least = request.severity.as_ref().map(severity).transpose()?.unwrap_or(Severity::Info);
        Ok(Filter { kinds, since: since.transpose()?, least })
    }

    /// Returns whether the reader wants this event.
    pub(crate) fn passes(&self, event: &Event) -> bool {
        let kind = Kind::named(&event.kind);
        (self.kinds.is_empty() || kind.is_some_and(|kind| self.kinds.contains(&kind)))
            && self.since.as_ref().is_none_or(|since| event.time >= *since)
            && kind.is_none_or(|kind| kind.severity() <= self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, time: &str) -> Event {
        Event { kind: kind.name().into(), time: time.into(), ..Event::default() }
    }

    #[test]
    fn a_filter_passes_what_fits_all_of_it() {
        let down = event(Kind::PortDown, "2026-08-30T12:00:00.500000000Z");
        let up = event(Kind::PortUp, "2026-08-30T12:00:01.000000000Z");
        let lost = event(Kind::PortLost, "2026-08-30T12:00:02.000000000Z");
        let all = [&down, &up, &lost];
        let passed = |request: &EventsRequest| {
            let filter = Filter::of(request).unwrap();
            all.iter().map(|event| filter.passes(event)).collect::<Vec<_>>()
        };
        let none = EventsRequest::default();
        assert_eq!(passed(&none), [true, true, true]);
        let kinds = vec!["port_up".into(), "port_lost".into()];
        let of_kinds = EventsRequest { kinds, ..none.clone() };
        assert_eq!(passed(&of_kinds), [false, true, true]);
        let severity = Some("warning".into());
        assert_eq!(passed(&EventsRequest { severity, ..none.clone() }), [true, false, true]);
        let severity = Some("error".into());
        assert_eq!(passed(&EventsRequest { severity, ..of_kinds }), [false, false, true]);
        for (since, expected) in [
            ("2026-08-30T12:00:00.5Z", [true, true, true]),
            ("2026-08-30T12:00:00.6Z", [false, true, true]),
            ("2026-08-30 12:00:01", [false, true, true]),
            ("2026-08-30T12:00:02Z", [false, false, true]),
        ] {
            let since = Some(since.to_owned());
            assert_eq!(passed(&EventsRequest { since, ..none.clone() }), expected);
        }
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_nearest_right_one() {
        let none = EventsRequest::default();
        let refused = |request: EventsRequest| Filter::of(&request).unwrap_err().to_string();
        let text = refused(EventsRequest { kinds: vec!["port_donw".into()], ..none.clone() });
        assert!(text.contains("did you mean \"port_down\"?"), "{text}");
        let text = refused(EventsRequest { severity: Some("bad".into()), ..none.clone() });
        assert!(text.contains("error, warning, notice or info"), "{text}");
        let text = refused(EventsRequest { since: Some("noon".into()), ..none });
        assert!(text.contains("\"noon\" is no time"), "{text}");
    }
}
