//! Attributes of the ioctl form: what a method accepts, and what the program passed.

use super::abi::Abi;
use super::abi::uverbs::IoctlAttr;
use super::errno::{EINVAL, ENOENT, EOPNOTSUPP, EPROTONOSUPPORT};
use super::udata::{Input, Output, Request, Udata};
use super::user;
use crate::objects::Result;

/// Driver data of a method.
pub const UHW_IN: u16 = 0x1000;
/// Driver response of a method.
pub const UHW_OUT: u16 = 0x1001;

const MANDATORY: u16 = 1;
const VALID_OUTPUT: u16 = 2;

/// Contents of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Bytes in, of a size within these bounds.
    In(u16, u16),
    /// A structure in, known up to the first size; a longer one must end in zeros.
    Structure(u16, u16),
    /// Bytes out, room within these bounds.
    Out(u16, u16),
    /// Handle of an existing object.
    Handle,
    /// Receives the handle of a new object, or its descriptor.
    New,
    /// Descriptor of an event file.
    Descriptor,
}

/// An attribute that a method knows.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Its number.
    pub id: u16,
    /// Its contents.
    pub carries: Carries,
    /// The method does not run without it.
    pub mandatory: bool,
}

impl Spec {
    /// Describes an attribute that must be there.
    pub const fn needs(id: u16, carries: Carries) -> Self {
        Self { id, carries, mandatory: true }
    }

    /// Describes an attribute that may be there.
    pub const fn takes(id: u16, carries: Carries) -> Self {
        Self { id, carries, mandatory: false }
    }

    fn check(&self, attr: &IoctlAttr) -> Result<()> {
        let (id, len) = (attr.id, attr.len);
        debug_assert_eq!(self.id, id);
        match self.carries {
            Carries::In(min, max) | Carries::Out(min, max) => {
                if !(min..=max).contains(&len) || attr.enum_id != 0 || attr.reserved != 0 {
                    return Err(EINVAL);
                }
            }
            Carries::Structure(min, known) => {
                let zero = || Input::attribute(attr.data, len.into()).is_zero_from(known.into());
                if len > known && !zero()? {
                    return Err(EOPNOTSUPP);
                }
                if len < min || attr.enum_id != 0 || attr.reserved != 0 {
                    return Err(EINVAL);
                }
            }
            Carries::Handle | Carries::New | Carries::Descriptor => {
                if len != 0 || attr.enum_id != 0 || attr.reserved != 0 {
                    return Err(EINVAL);
                }
            }
        }
        Ok(())
    }
}

/// Returns the size bounds of a fixed-size input.
pub const fn exactly(size: u16) -> Carries {
    Carries::In(size, size)
}

/// A constant: always eight bytes, inline.
pub const CONSTANT: Carries = exactly(8);
/// Flags: four or eight bytes, inline.
pub const FLAGS: Carries = Carries::In(4, 8);
/// Returns the bounds of a response of at least this size.
pub const fn room(size: u16) -> Carries {
    Carries::Out(size, size)
}
/// Driver data of any size.
pub const DRIVER: [Spec; 2] =
    [Spec::takes(UHW_IN, Carries::In(0, u16::MAX)), Spec::takes(UHW_OUT, Carries::Out(0, u16::MAX))];

/// The attributes that the program passed and the method knows.
#[derive(Debug, Default)]
pub struct Attrs {
    // Each attribute with its address in the program's memory: small results are written into the attribute.
    list: Vec<(IoctlAttr, u64)>,
}

impl Attrs {
    /// Checks the passed attributes by the rules of the kernel: an unknown attribute counts only when marked
    /// mandatory, no attribute may come twice, sizes must fit, and no mandatory attribute may be missing.
    pub fn check(passed: Vec<(IoctlAttr, u64)>, known: &[&[Spec]]) -> Result<Self> {
        let specs = || known.iter().flat_map(|specs| specs.iter());
        let mut list: Vec<(IoctlAttr, u64)> = Vec::with_capacity(passed.len());
        for (attr, addr) in passed {
            let Some(spec) = specs().find(|spec| spec.id == attr.id) else {
                if attr.flags & MANDATORY != 0 {
                    return Err(EPROTONOSUPPORT);
                }
                continue;
            };
            if list.iter().any(|(other, _)| other.id == attr.id) {
                return Err(EINVAL);
            }
            spec.check(&attr)?;
            list.push((attr, addr));
        }
        let attrs = Self { list };
        if specs().any(|spec| spec.mandatory && !attrs.has(spec.id)) {
            return Err(EINVAL);
        }
        Ok(attrs)
    }

    fn find(&self, id: u16) -> Option<&(IoctlAttr, u64)> {
        self.list.iter().find(|(attr, _)| attr.id == id)
    }

    /// Returns `true` if the program passed the attribute.
    pub fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Returns the data word of a constant, handle or descriptor.
    pub fn word(&self, id: u16) -> Option<u64> {
        self.find(id).map(|(attr, _)| attr.data)
    }

    fn needed(&self, id: u16) -> Result<u64> {
        self.word(id).ok_or(ENOENT)
    }

    /// Returns the handle of an object.
    pub fn handle(&self, id: u16) -> Result<u32> {
        // As in the kernel, a negative number is invalid and a large number names no object.
        let data = self.needed(id)? as i64;
        if data < 0 {
            return Err(EINVAL);
        }
        u32::try_from(data).map_err(|_| ENOENT)
    }

    /// Returns the descriptor of the program, if given.
    pub fn descriptor(&self, id: u16) -> Result<Option<i32>> {
        let fd = self.word(id).map(|data| i32::try_from(data as i64));
        fd.transpose().map_err(|_| EINVAL)
    }

    /// Returns a constant, which must fit into 32 bits.
    pub fn constant(&self, id: u16) -> Result<u32> {
        u32::try_from(self.needed(id)?).map_err(|_| EINVAL)
    }

    /// Returns the flags, 0 if not given; other flags than `allowed` are invalid.
    pub fn flags(&self, id: u16, allowed: u32) -> Result<u32> {
        let Some((attr, _)) = self.find(id) else { return Ok(0) };
        let flags = match attr.len {
            4 => u64::from(u32::get(&attr.data.to_ne_bytes())),
            8 => attr.data,
            _ => return Err(EINVAL),
        };
        if flags & !u64::from(allowed) != 0 {
            return Err(EINVAL);
        }
        Ok(flags as u32)
    }

    /// Returns the bytes of an input.
    pub fn input(&self, id: u16) -> Input {
        let attr = self.find(id);
        attr.map_or(Input::default(), |(attr, _)| Input::attribute(attr.data, attr.len.into()))
    }

    /// Returns an input as a value.
    pub fn get<T: Abi>(&self, id: u16) -> Result<T> {
        self.needed(id)?;
        self.input(id).get()
    }

    /// Returns the room of an output.
    pub fn output(&self, id: u16) -> Output {
        self.find(id).map_or(Output::default(), |(attr, _)| Output { addr: attr.data, len: attr.len.into() })
    }

    /// Writes a result, if the program asked for it.
    pub fn put<T: Abi>(&self, id: u16, value: &T) -> Result<()> {
        if self.has(id) {
            self.output(id).put(value)?;
            self.mark_written(id)?;
        }
        Ok(())
    }

    /// Writes a result and clears what remains of its room.
    pub fn respond<T: Abi>(&self, id: u16, value: &T) -> Result<()> {
        self.output(id).respond(value)?;
        self.mark_written(id)
    }

    /// Marks an output as written.
    pub fn mark_written(&self, id: u16) -> Result<()> {
        let Some((attr, addr)) = self.find(id) else { return Ok(()) };
        user::write(addr + 4, &(attr.flags | VALID_OUTPUT).to_bytes())
    }

    /// Writes the handle or descriptor of a new object.
    pub fn put_new(&self, id: u16, number: u32) -> Result<()> {
        let (_, addr) = self.find(id).ok_or(EINVAL)?;
        user::write(addr + 8, &u64::from(number).to_bytes())
    }

    /// Returns the driver's part.
    pub fn driver(&self) -> Udata {
        Udata { input: self.input(UHW_IN), output: self.output(UHW_OUT) }
    }

    /// Returns a command of the write form that attributes carry.
    pub fn request(&self, core_in: u16, core_out: u16) -> Request {
        let core = Udata { input: self.input(core_in), output: self.output(core_out) };
        Request { core, driver: self.driver() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[Spec] = &[
        Spec::needs(0, Carries::Handle),
        Spec::takes(1, exactly(4)),
        Spec::takes(2, Carries::Structure(4, 8)),
        Spec::takes(3, FLAGS),
    ];

    fn attr(id: u16, len: u16, data: u64) -> (IoctlAttr, u64) {
        (IoctlAttr { id, len, flags: MANDATORY, data, ..IoctlAttr::default() }, 0)
    }

    fn check(passed: &[(IoctlAttr, u64)]) -> Result<Attrs> {
        Attrs::check(passed.to_vec(), &[SPECS])
    }

    #[test]
    fn unknown_attributes_count_only_when_mandatory() {
        let mut unknown = attr(77, 4, 0);
        assert_eq!(check(&[attr(0, 0, 5), unknown]).err(), Some(EPROTONOSUPPORT));
        unknown.0.flags = 0;
        assert_eq!(check(&[attr(0, 0, 5), unknown]).unwrap().handle(0), Ok(5));
    }

    #[test]
    fn missing_doubled_and_misshapen_attributes_are_invalid() {
        assert_eq!(check(&[attr(1, 4, 0)]).err(), Some(EINVAL));
        assert_eq!(check(&[attr(0, 0, 5), attr(0, 0, 5)]).err(), Some(EINVAL));
        assert_eq!(check(&[attr(0, 4, 5)]).err(), Some(EINVAL));
        assert_eq!(check(&[attr(0, 0, 5), attr(1, 8, 0)]).err(), Some(EINVAL));
        let mut reserved = attr(1, 4, 0);
        reserved.0.reserved = 1;
        assert_eq!(check(&[attr(0, 0, 5), reserved]).err(), Some(EINVAL));
        assert_eq!(check(&[attr(0, 0, 5), attr(2, 2, 0)]).err(), Some(EINVAL));
    }

    #[test]
    fn a_longer_structure_is_accepted_when_its_end_is_zero() {
        let mut long = [1u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let at = |bytes: &[u8; 12]| attr(2, 12, bytes.as_ptr() as u64);
        assert!(check(&[attr(0, 0, 5), at(&long)]).is_ok());
        long[11] = 1;
        assert_eq!(check(&[attr(0, 0, 5), at(&long)]).err(), Some(EOPNOTSUPP));
    }

    #[test]
    fn flags_come_in_two_sizes() {
        let attrs = check(&[attr(0, 0, 5), attr(3, 4, 0x1_0000_0003)]);
        assert_eq!(attrs.unwrap().flags(3, 3), Ok(3));
        let attrs = check(&[attr(0, 0, 5), attr(3, 8, 0x1_0000_0003)]);
        assert_eq!(attrs.unwrap().flags(3, 3), Err(EINVAL));
    }

    #[test]
    fn handles_out_of_range_differ_from_unknown_ones() {
        assert_eq!(check(&[attr(0, 0, u64::MAX)]).unwrap().handle(0), Err(EINVAL));
        assert_eq!(check(&[attr(0, 0, 1 << 40)]).unwrap().handle(0), Err(ENOENT));
    }
}
