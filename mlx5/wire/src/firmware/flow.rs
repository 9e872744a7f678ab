//! Flow tables: tables, groups of entries with one mask, and entries.

use super::command::Request;

/// Bytes of the fields that entries can match (`fte_match_param`).
pub const MATCH: usize = 0x200;
/// Bytes of the outer headers in it, which come first.
pub const OUTER: usize = 0x40;

/// Types of tables.
pub mod table_type {
    /// Frames that the port receives.
    pub const RECEIVE: u8 = 0;
    /// Frames that the port sends.
    pub const TRANSMIT: u8 = 1;
}

/// Bits of an action.
pub mod action {
    /// The frame is taken.
    pub const ALLOW: u16 = 1 << 0;
    /// The frame is dropped.
    pub const DROP: u16 = 1 << 1;
    /// The frame goes to the destinations.
    pub const FORWARD: u16 = 1 << 2;
    /// The frame is counted.
    pub const COUNT: u16 = 1 << 3;
}

/// Types of destinations.
pub mod destination {
    /// A flow table.
    pub const TABLE: u8 = 1;
    /// A TIR.
    pub const TIR: u8 = 2;
}

fields! {
    /// The commands about a table: SET_FLOW_TABLE_ROOT, DESTROY_FLOW_TABLE.
    pub struct OfTable: 0x18 {
        /// Head.
        request: Request = 0x00,
        /// Tables of another function.
        other_vport: bool = 0x08[31],
        /// [`table_type`].
        table_type: u8 = 0x10[31:24],
        /// Table.
        table: u32 = 0x14[23:0],
    }
}

fields! {
    /// Context of a table (`flow_table_context`).
    pub struct TableContext: 0x28 {
        /// Frames that match no entry: 0 to the end of the tables, 1 to another table.
        miss_action: u8 = 0x00[27:24],
        /// Level.
        level: u8 = 0x00[23:16],
        /// log2 of the entries.
        log_size: u8 = 0x00[7:0],
        /// Table of the frames that match no entry.
        miss_table: u32 = 0x04[23:0],
    }
}

fields! {
    /// CREATE_FLOW_TABLE.
    pub struct CreateTable: 0x40 {
        /// Head.
        request: Request = 0x00,
        /// Tables of another function.
        other_vport: bool = 0x08[31],
        /// [`table_type`].
        table_type: u8 = 0x10[31:24],
        /// Context.
        context: TableContext = 0x18,
    }
}

fields! {
    /// MODIFY_FLOW_TABLE.
    pub struct ModifyTable: 0x40 {
        /// Head.
        request: Request = 0x00,
        /// Fields to change: bit 0 the table of frames that match no entry.
        field_select: u16 = 0x0c[15:0],
        /// [`table_type`].
        table_type: u8 = 0x10[31:24],
        /// Table.
        table: u32 = 0x14[23:0],
        /// Context.
        context: TableContext = 0x18,
    }
}

fields! {
    /// CREATE_FLOW_GROUP.
    pub struct CreateGroup: 0x240 {
        /// Head.
        request: Request = 0x00,
        /// [`table_type`].
        table_type: u8 = 0x10[31:24],
        /// Table.
        table: u32 = 0x14[23:0],
        /// First entry.
        start: u32 = 0x1c,
        /// Last entry.
        end: u32 = 0x24,
        /// Parts of the mask: bit 0 outer headers, others none that the device knows.
        criteria: u8 = 0x3c[7:0],
        /// Mask.
        mask: [u8; 0x200] = 0x40,
    }
}

fields! {
    /// DESTROY_FLOW_GROUP.
    pub struct DestroyGroup: 0x1c {
        /// Head.
        request: Request = 0x00,
        /// Table.
        table: u32 = 0x14[23:0],
        /// Group.
        group: u32 = 0x18,
    }
}

fields! {
    /// SET_FLOW_TABLE_ENTRY, before the destinations.
    pub struct SetEntry: 0x340 {
        /// Head; modifier 0 makes the entry, 1 changes it.
        request: Request = 0x00,
        /// [`table_type`].
        table_type: u8 = 0x10[31:24],
        /// Table.
        table: u32 = 0x14[23:0],
        /// Place in the table.
        index: u32 = 0x20,
        /// Group.
        group: u32 = 0x44,
        /// Tag in the CQE.
        tag: u32 = 0x48[23:0],
        /// [`action`].
        action: u16 = 0x4c[15:0],
        /// Destinations that follow.
        destinations: u32 = 0x50[23:0],
        /// Value.
        value: [u8; 0x200] = 0x80,
    }
}

fields! {
    /// A destination.
    pub struct Destination: 0x08 {
        /// [`destination`].
        kind: u8 = 0x00[31:24],
        /// Number.
        number: u32 = 0x00[23:0],
    }
}

fields! {
    /// DELETE_FLOW_TABLE_ENTRY.
    pub struct DeleteEntry: 0x24 {
        /// Head.
        request: Request = 0x00,
        /// Table.
        table: u32 = 0x14[23:0],
        /// Place in the table.
        index: u32 = 0x20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_value_at_80() {
        let entry = SetEntry {
            table: 3,
            index: 5,
            group: 9,
            action: action::FORWARD,
            destinations: 1,
            value: [7; MATCH],
            ..SetEntry::ZERO
        };
        let bytes = entry.to_bytes();
        assert_eq!((bytes[0x17], bytes[0x23], bytes[0x47]), (3, 5, 9));
        assert_eq!((bytes[0x4f], bytes[0x53], bytes[0x7f]), (4, 1, 0));
        assert_eq!((bytes[0x80], bytes[0x27f], bytes[0x280]), (7, 7, 0));
        let destination = Destination { kind: destination::TIR, number: 0x21 };
        assert_eq!(destination.to_bytes(), [2, 0, 0, 0x21, 0, 0, 0, 0]);
    }
}
