//! The write form of a command, and the table of all commands that have it.

use super::abi::Abi;
use super::abi::uverbs::{self, CommandHeader, ExtendedHeader};
use super::attrs::{Attrs, CONSTANT, Carries, Spec};
use super::errno::{EFAULT, EINVAL, ENOSPC, EOPNOTSUPP};
use super::udata::{Input, Output, Request, Udata};
use super::{
    Call, ah, context, cq, flow, mr, multicast, mw, pd, port, qp, qp_create, qp_modify, qp_query, query_device, rss,
    srq, wq,
};
use crate::objects::Result;

const EXTENDED: u32 = 1 << 31;
const COMMAND: u32 = 0xff;
/// Numbers of the plain commands end here.
const PLAIN_END: u32 = 41;

struct Command {
    number: u32,
    // Least bytes of the core's request and response.
    request: usize,
    response: usize,
    // Driver data may follow.
    driver: bool,
    run: fn(&mut Call, &Request) -> Result<()>,
}

macro_rules! commands {
    ($($number:literal $request:expr, $response:expr, $driver:expr => $run:expr;)*) => {
        &[$(Command {
            number: $number,
            request: $request,
            response: $response,
            driver: $driver,
            run: $run,
        },)*]
    };
}

const fn size<T: Abi>() -> usize {
    T::SIZE
}

fn destroy<const TYPE: u16>(call: &mut Call, request: &Request) -> Result<()> {
    let handle: u32 = request.core.input.request()?;
    call.destroy(handle, TYPE).map(drop)
}

const PD: u16 = 1;
const AH: u16 = 6;
const MR: u16 = 7;
const MW: u16 = mw::TYPE;

const PLAIN: &[Command] = commands! {
    0 8, size::<uverbs::GetContextResp>(), true => context::write_get;
    1 8, size::<uverbs::QueryDeviceResp>(), false => query_device::query;
    2 size::<uverbs::QueryPort>(), size::<uverbs::QueryPortResp>(), false => port::write_query;
    3 8, 4, true => pd::alloc;
    4 4, 0, false => destroy::<PD>;
    5 size::<uverbs::CreateAh>(), 4, true => ah::write_create;
    8 4, 0, false => destroy::<AH>;
    9 size::<uverbs::RegMr>(), size::<uverbs::RegMrResp>(), true => mr::write_register;
    11 size::<uverbs::ReregMr>(), size::<uverbs::ReregMrResp>(), true => mr::write_reregister;
    13 4, 0, false => destroy::<MR>;
    14 size::<uverbs::AllocMw>(), size::<uverbs::AllocMwResp>(), true => mw::write_alloc;
    16 4, 0, false => destroy::<MW>;
    17 8, 4, false => context::comp_channel;
    18 size::<uverbs::CreateCq>(), size::<uverbs::CreateCqResp>(), true => cq::write_create;
    19 size::<uverbs::ResizeCq>(), size::<uverbs::ResizeCqResp>(), true => cq::write_resize;
    20 size::<uverbs::Destroy>(), size::<uverbs::DestroyCqResp>(), false => cq::write_destroy;
    24 size::<uverbs::CreateQp>(), size::<uverbs::CreateQpResp>(), true => qp_create::write_create;
    25 size::<uverbs::QueryQp>(), size::<uverbs::QueryQpResp>(), false => qp_query::write_query;
    26 size::<uverbs::ModifyQp>(), 0, false => qp_modify::write_modify;
    27 size::<uverbs::Destroy>(), 4, false => qp::write_destroy;
    30 size::<uverbs::Multicast>(), 0, false => multicast::write_attach;
    31 size::<uverbs::Multicast>(), 0, false => multicast::write_detach;
    32 size::<uverbs::CreateSrq>(), size::<uverbs::CreateSrqResp>(), true => srq::write_create;
    33 size::<uverbs::ModifySrq>(), 0, true => srq::write_modify;
    34 size::<uverbs::Destroy>(), size::<uverbs::QuerySrqResp>(), false => srq::write_query;
    35 size::<uverbs::Destroy>(), 4, false => srq::write_destroy;
    39 size::<uverbs::CreateXsrq>(), size::<uverbs::CreateSrqResp>(), true => srq::write_create_any;
};

// Responses grow: the smallest form ends with the response length.
const EXTENDED_FORM: &[Command] = commands! {
    1 8, 184, true => query_device::query_ex;
    18 32, 16, true => cq::write_create_ex;
    24 52, 40, true => qp_create::write_create_ex;
    26 116, 8, true => qp_modify::write_modify_ex;
    50 size::<uverbs::CreateFlow>(), 8, true => flow::write_create;
    51 8, 0, false => flow::write_destroy;
    52 36, 24, true => wq::write_create;
    53 16, 0, true => wq::write_modify;
    54 8, 16, false => wq::write_destroy;
    55 8, 16, true => rss::write_create_table;
    56 8, 0, false => rss::write_destroy_table;
};

/// Commands that destroy an object.
const DESTROYS: &[u32] = &[4, 8, 13, 16, 20, 27, 35, EXTENDED | 51, EXTENDED | 54, EXTENDED | 56];

fn find(command: u32) -> Result<&'static Command> {
    let number = command & COMMAND;
    if command & !(EXTENDED | COMMAND) != 0 {
        return Err(EINVAL);
    }
    let table = if command & EXTENDED != 0 { EXTENDED_FORM } else { PLAIN };
    if command & EXTENDED == 0 && number >= PLAIN_END {
        return Err(EINVAL);
    }
    table.iter().find(|candidate| candidate.number == number).ok_or(EOPNOTSUPP)
}

const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_CMD: u16 = 2;

/// Attributes of INVOKE_WRITE: a write command carried by attributes.
pub const INVOKE_WRITE: &[Spec] = &[
    Spec::takes(CORE_IN, Carries::In(4, u16::MAX)),
    Spec::takes(CORE_OUT, Carries::Out(0, u16::MAX)),
    Spec::needs(WRITE_CMD, CONSTANT),
];

/// Runs INVOKE_WRITE.
pub fn invoke(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let number = attrs.constant(WRITE_CMD)?;
    let command = find(number)?;
    call.check_present(DESTROYS.contains(&number))?;
    let request = attrs.request(CORE_IN, CORE_OUT);
    let core = &request.core;
    if core.input.len() < command.request || core.output.len < command.response {
        return Err(ENOSPC);
    }
    (command.run)(call, &request)?;
    attrs.mark_written(CORE_OUT)
}

/// Runs the command of `count` bytes at `addr`.
pub fn run(call: &mut Call, addr: u64, count: usize) -> Result<()> {
    if count < CommandHeader::SIZE {
        return Err(EINVAL);
    }
    let header: CommandHeader = Input::user(addr, count).get()?;
    let command = find(header.command)?;
    call.check_present(DESTROYS.contains(&header.command))?;
    let request = if header.command & EXTENDED != 0 {
        extended(command, &header, addr, count)?
    } else {
        plain(command, &header, addr, count)?
    };
    (command.run)(call, &request)
}

// Header, core request that starts with the address of the response if there is one, driver data.
// Lengths count words of four bytes and include the header.
fn plain(command: &Command, header: &CommandHeader, addr: u64, count: usize) -> Result<Request> {
    if usize::from(header.in_words) * 4 != count {
        return Err(EINVAL);
    }
    let out_len = usize::from(header.out_words) * 4;
    if count < command.request + CommandHeader::SIZE || out_len < command.response {
        return Err(ENOSPC);
    }
    let addr = addr + CommandHeader::SIZE as u64;
    let in_len = count - CommandHeader::SIZE;
    let response: u64 = if command.response > 0 { Input::user(addr, in_len).get()? } else { 0 };
    let (core_in, core_out) = if command.driver { (command.request, command.response) } else { (in_len, out_len) };
    let after = |addr: u64, len: usize| addr.wrapping_add(len as u64);
    Ok(Request {
        core: Udata { input: Input::user(addr, core_in), output: Output { addr: response, len: core_out } },
        driver: Udata {
            input: Input::user(after(addr, core_in), in_len - core_in),
            output: Output { addr: after(response, core_out), len: out_len - core_out },
        },
    })
}

// Header, second header with the address of the response, core request, driver data. Lengths count
// words of eight bytes without the headers.
fn extended(command: &Command, header: &CommandHeader, addr: u64, count: usize) -> Result<Request> {
    const HEADERS: usize = CommandHeader::SIZE + ExtendedHeader::SIZE;
    let body = count.checked_sub(HEADERS).ok_or(EINVAL)?;
    let second: ExtendedHeader = Input::user(addr + CommandHeader::SIZE as u64, ExtendedHeader::SIZE).get()?;
    let core_in = usize::from(header.in_words) * 8;
    let core_out = usize::from(header.out_words) * 8;
    let driver_in = usize::from(second.provider_in_words) * 8;
    let driver_out = usize::from(second.provider_out_words) * 8;
    if core_in + driver_in != body {
        return Err(EINVAL);
    }
    if core_in < command.request {
        return Err(ENOSPC);
    }
    if second.reserved != 0 {
        return Err(EINVAL);
    }
    if second.response != 0 {
        if core_out + driver_out == 0 {
            return Err(EINVAL);
        }
        if core_out < command.response {
            return Err(ENOSPC);
        }
        if second.response.checked_add((core_out + driver_out) as u64).is_none() {
            return Err(EFAULT);
        }
    } else if core_out + driver_out != 0 {
        return Err(EINVAL);
    }
    let addr = addr + HEADERS as u64;
    Ok(Request {
        core: Udata { input: Input::user(addr, core_in), output: Output { addr: second.response, len: core_out } },
        driver: Udata {
            input: Input::user(addr + core_in as u64, driver_in),
            output: Output { addr: second.response + core_out as u64, len: driver_out },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u32, in_words: u16, out_words: u16) -> CommandHeader {
        CommandHeader { command, in_words, out_words }
    }

    #[test]
    fn unknown_commands_have_their_own_error() {
        assert!(find(3).is_ok());
        assert_eq!(find(15).err(), Some(EOPNOTSUPP));
        assert_eq!(find(41).err(), Some(EINVAL));
        assert_eq!(find(0x100).err(), Some(EINVAL));
        assert!(find(EXTENDED | 1).is_ok());
        assert!(find(EXTENDED | 50).is_ok());
        assert_eq!(find(EXTENDED | 57).err(), Some(EOPNOTSUPP));
        assert_eq!(find(EXTENDED | 0xff).err(), Some(EOPNOTSUPP));
        assert!(DESTROYS.iter().all(|&command| find(command).is_ok()));
    }

    #[test]
    fn a_plain_command_is_cut_at_the_sizes_of_its_core() {
        // ALLOC_PD with eight bytes of driver data and four of driver response.
        let body = [0x1000u64, 7];
        let addr = body.as_ptr() as u64 - 8;
        let pd = find(3).unwrap();
        let request = plain(pd, &header(3, 6, 2), addr, 24).unwrap();
        assert_eq!((request.core.output.addr, request.core.output.len), (0x1000, 4));
        assert_eq!((request.driver.output.addr, request.driver.output.len), (0x1004, 4));
        assert_eq!(request.driver.input.get::<u64>(), Ok(7));
        assert_eq!(plain(pd, &header(3, 6, 2), addr, 28).err(), Some(EINVAL));
        assert_eq!(plain(pd, &header(3, 6, 0), addr, 24).err(), Some(ENOSPC));
        assert_eq!(plain(pd, &header(3, 3, 2), addr, 12).err(), Some(ENOSPC));
    }

    #[test]
    fn an_extended_command_needs_room_for_each_part_it_announces() {
        let query = find(EXTENDED | 1).unwrap();
        let parse = |response: u64, in_words, out_words, driver_out: u16, count| {
            let second = ExtendedHeader { response, provider_in_words: 0, provider_out_words: driver_out, reserved: 0 };
            let mut bytes = vec![0; 8];
            bytes.extend(second.to_bytes());
            bytes.extend([0; 64]);
            extended(query, &header(0, in_words, out_words), bytes.as_ptr() as u64, count)
        };
        let request = parse(0x2000, 1, 38, 13, 32).unwrap();
        assert_eq!((request.core.output.len, request.driver.output.len), (304, 104));
        assert_eq!(request.driver.output.addr, 0x2000 + 304);
        assert_eq!(parse(0x2000, 1, 38, 13, 40).err(), Some(EINVAL));
        assert_eq!(parse(0x2000, 0, 38, 13, 24).err(), Some(ENOSPC));
        assert_eq!(parse(0x2000, 1, 2, 0, 32).err(), Some(ENOSPC));
        assert_eq!(parse(0, 1, 38, 0, 32).err(), Some(EINVAL));
        assert_eq!(parse(0x2000, 1, 0, 0, 32).err(), Some(EINVAL));
        assert_eq!(parse(u64::MAX - 8, 1, 38, 0, 32).err(), Some(EFAULT));
        assert_eq!(parse(0x2000, 1, 38, 0, 20).err(), Some(EINVAL));
    }
}
