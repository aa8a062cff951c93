//! Maps a status to its counter.

/// The counter of a status: its own if it is registered with IANA (or is 499, for a client that
/// left), otherwise that of its class.
pub(super) fn code_index(status: u16) -> usize {
    CODE_INDEX
        .get(usize::from(status))
        .copied()
        .map_or(CODES - 1, usize::from)
}

/// The `code` label of a counter.
pub(super) fn code_label(index: usize) -> String {
    match KNOWN_CODES.get(index) {
        Some(code) => code.to_string(),
        None => format!("{}xx", index - KNOWN_CODES.len()),
    }
}

const CODE_INDEX: [u8; 600] = {
    let mut table = [0; 600];
    let mut status = 0;
    while status < table.len() {
        // The class, unless the code has a counter of its own.
        let mut index = KNOWN_CODES.len() + status / 100;
        let mut known = 0;
        while known < KNOWN_CODES.len() {
            if KNOWN_CODES[known] as usize == status {
                index = known;
            }
            known += 1;
        }
        assert!(index < 256);
        #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
        {
            table[status] = index as u8;
        }
        status += 1;
    }
    table
};

/// One per known code and one per class, 0 to 5 (0: no status).
pub(super) const CODES: usize = KNOWN_CODES.len() + 6;

const KNOWN_CODES: [u16; 64] = [
    100, 101, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305,
    307, 308, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416,
    417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505,
    506, 507, 508, 510, 511, 520, 529,
];
