//! Objects of one open file, named by handles.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ah::Ah;
use super::cq::Cq;
use super::devx::object::DevxObject;
use super::devx::umem::Umem;
use super::dm::Dm;
use super::errno::{EINVAL, ENOENT};
use super::flow::Flow;
use super::mr::Mr;
use super::mw::Mw;
use super::pd::Pd;
use super::qp::Qp;
use super::rss::{IndTable, RssQp};
use super::srq::Srq;
use super::uar_object::UarObject;
use super::wq::Wq;
use crate::commands::objects::Id;
use crate::objects::Result;

macro_rules! objects {
    ($($kind:ident = $id:literal),*) => {
        /// Anything a handle can name.
        #[derive(Debug)]
        pub enum Object {
            $(
                #[doc = stringify!($kind)]
                $kind($kind),
            )*
        }

        impl Object {
            /// Returns the object type as the ioctl interface numbers them (`UVERBS_OBJECT_*`).
            pub fn type_id(&self) -> u16 {
                match self {
                    $(Self::$kind(_) => $id,)*
                }
            }
        }

        $(
            impl From<$kind> for Object {
                fn from(object: $kind) -> Self {
                    Self::$kind(object)
                }
            }

            impl Kind for $kind {
                fn of(object: &Object) -> Option<&Self> {
                    if let Object::$kind(object) = object { Some(object) } else { None }
                }

                fn of_mut(object: &mut Object) -> Option<&mut Self> {
                    if let Object::$kind(object) = object { Some(object) } else { None }
                }
            }
        )*
    };
}

/// A type of object.
pub trait Kind: Into<Object> {
    /// Returns the object, if it is of this type.
    fn of(object: &Object) -> Option<&Self>;
    /// Returns the object, if it is of this type.
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
}

objects!(
    Pd = 1,
    Cq = 3,
    Qp = 4,
    RssQp = 4,
    Srq = 5,
    Ah = 6,
    Mr = 7,
    Mw = 8,
    Flow = 9,
    IndTable = 11,
    Wq = 12,
    Dm = 14,
    UarObject = 0x1008,
    DevxObject = 0x1001,
    Umem = 0x1002
);

/// Handle table: a new object gets the lowest free handle.
#[derive(Debug, Default)]
pub struct Handles {
    // Objects by handle, each with its entries in the registry of `commands`: none, one, or the parts of a raw packet
    // queue pair.
    slots: Vec<Option<(Vec<Id>, Object)>>,
    free: BinaryHeap<Reverse<u32>>,
}

impl Handles {
    /// Stores an object, which the registry knows as `ids`.
    pub fn insert(&mut self, ids: Vec<Id>, object: impl Into<Object>) -> u32 {
        let object = Some((ids, object.into()));
        match self.free.pop() {
            Some(Reverse(handle)) => {
                self.slots[handle as usize] = object;
                handle
            }
            None => {
                self.slots.push(object);
                self.slots.len() as u32 - 1
            }
        }
    }

    fn any(&self, handle: u32) -> Result<&Object> {
        let slot = self.slots.get(handle as usize).and_then(Option::as_ref);
        slot.map(|(_, object)| object).ok_or(ENOENT)
    }

    /// Returns the places of an object in the registry.
    pub fn ids(&self, handle: u32) -> &[Id] {
        self.slots.get(handle as usize).and_then(Option::as_ref).map_or(&[], |(ids, _)| ids)
    }

    /// Returns the object of this type with this handle.
    pub fn get<K: Kind>(&self, handle: u32) -> Result<&K> {
        K::of(self.any(handle)?).ok_or(EINVAL)
    }

    /// Returns the object of this type with this handle.
    pub fn get_mut<K: Kind>(&mut self, handle: u32) -> Result<&mut K> {
        let slot = self.slots.get_mut(handle as usize).and_then(Option::as_mut);
        K::of_mut(&mut slot.ok_or(ENOENT)?.1).ok_or(EINVAL)
    }

    /// Returns the type of the object with this handle.
    pub fn type_id(&self, handle: u32) -> Result<u16> {
        self.any(handle).map(Object::type_id)
    }

    /// Takes an object out; returns its places in the registry, or `None` for a handle without an object.
    pub fn remove(&mut self, handle: u32) -> Option<Vec<Id>> {
        let (ids, _) = self.slots.get_mut(handle as usize)?.take()?;
        self.free.push(Reverse(handle));
        Some(ids)
    }

    /// Returns all objects.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.slots.iter().flatten().map(|(_, object)| object)
    }

    /// Handles of all objects of a type, the newest number first.
    pub fn of_type(&self, type_id: u16) -> Vec<u32> {
        let handles = self.slots.iter().enumerate().rev();
        let handles = handles.filter(|(_, slot)| slot.as_ref().is_some_and(|(_, object)| object.type_id() == type_id));
        handles.map(|(handle, _)| handle as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::objects as registry;
    use crate::objects::Pdn;

    #[test]
    fn handles_are_the_lowest_free_and_know_their_type() {
        let mut handles = Handles::default();
        let insert = |handles: &mut Handles, n| handles.insert(vec![Id(registry::Kind::Pd, n)], Pd { pdn: Pdn(n) });
        assert_eq!([0, 1, 2].map(|n| insert(&mut handles, n)), [0, 1, 2]);
        assert!(handles.remove(1).is_some());
        assert!(handles.remove(0).is_some());
        assert!(handles.remove(0).is_none());
        assert_eq!(insert(&mut handles, 3), 0);
        assert_eq!(handles.get::<Pd>(1).err(), Some(ENOENT));
        assert_eq!(handles.get::<Ah>(2).err(), Some(EINVAL));
        assert_eq!(handles.get::<Pd>(9).err(), Some(ENOENT));
        assert_eq!(handles.of_type(1), [2, 0]);
    }
}
