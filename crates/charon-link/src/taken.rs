//! The fields of a message, by their number.

use crate::MAX_SELECTORS;
use crate::field::{Field, Fields, Malformed, name};
use crate::selector::Selector;

/// Numbers of fields: one more than the largest.
const FIELD_NAMES: usize = name::CHARON_ID as usize + 1;

/// The fields of a message by their number, until each is taken.
pub(crate) struct Taken<'m> {
    known: [Option<Field<'m>>; FIELD_NAMES],
    selectors: [Vec<Selector>; 2],
}

impl<'m> Taken<'m> {
    /// Reads all fields. Only selectors may come more than once.
    pub(crate) fn read(fields: Fields<'m>) -> Result<Taken<'m>, Malformed> {
        let mut taken = Taken { known: [None; FIELD_NAMES], selectors: [Vec::new(), Vec::new()] };
        for field in fields {
            let field = field?;
            let of_selectors = match field.name {
                name::SOURCE_SELECTOR => Some(0),
                name::DESTINATION_SELECTOR => Some(1),
                _ => None,
            };
            if let Some(end) = of_selectors {
                let list = &mut taken.selectors[end];
                if list.len() == MAX_SELECTORS {
                    return Err(Malformed::Field(field.name));
                }
                list.push(Selector::read(&field)?);
                continue;
            }
            let place = taken.known.get_mut(usize::from(field.name));
            match place {
                Some(place @ None) => *place = Some(field),
                _ => return Err(Malformed::Field(field.name)),
            }
        }
        Ok(taken)
    }

    /// Takes a field that must be there.
    pub(crate) fn need(&mut self, name: u16) -> Result<Field<'m>, Malformed> {
        self.take(name).ok_or(Malformed::Missing(name))
    }

    /// Takes a field that may be there.
    pub(crate) fn take(&mut self, name: u16) -> Option<Field<'m>> {
        self.known[usize::from(name)].take()
    }

    /// Takes the selectors of both ends, at least one of each.
    pub(crate) fn selectors(&mut self) -> Result<[Vec<Selector>; 2], Malformed> {
        let taken = std::mem::take(&mut self.selectors);
        let names = [name::SOURCE_SELECTOR, name::DESTINATION_SELECTOR];
        for (list, name) in taken.iter().zip(names) {
            if list.is_empty() {
                return Err(Malformed::Missing(name));
            }
        }
        Ok(taken)
    }

    /// Takes the selectors of both ends, at least one of each, or of none.
    pub(crate) fn selectors_if_any(&mut self) -> Result<Option<[Vec<Selector>; 2]>, Malformed> {
        match self.selectors.iter().all(Vec::is_empty) {
            true => Ok(None),
            false => self.selectors().map(Some),
        }
    }

    /// Takes one selector of each end.
    pub(crate) fn one_selector_each(&mut self) -> Result<[Selector; 2], Malformed> {
        let [source, destination] = self.selectors()?.map(<[Selector; 1]>::try_from);
        let too_many = |name: u16| move |_| Malformed::Field(name);
        let [source] = source.map_err(too_many(name::SOURCE_SELECTOR))?;
        let [destination] = destination.map_err(too_many(name::DESTINATION_SELECTOR))?;
        Ok([source, destination])
    }

    /// Refuses what was not taken.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if let Some(field) = self.known.into_iter().flatten().next() {
            return Err(Malformed::Field(field.name));
        }
        let names = [name::SOURCE_SELECTOR, name::DESTINATION_SELECTOR];
        let left = self.selectors.iter().zip(names).find(|(list, _)| !list.is_empty());
        left.map_or(Ok(()), |(_, name)| Err(Malformed::Field(name)))
    }
}
