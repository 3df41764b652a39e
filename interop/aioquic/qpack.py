"""pylsqpack, the QPACK of aioquic, as a decoder and an encoder controlled by a test.

    qpack.py

On standard input come commands, one a line. Bytes are hexadecimal digits, `-` if there are none, and a list is
NAME:VALUE and so on, in digits, too:

    new CAPACITY BLOCKED      a decoder and an encoder, for a table of so many bytes and so many blocked streams
    instructions BYTES        on the encoder stream, for the decoder
    section STREAM BYTES      a field section, for the decoder
    encode STREAM LIST        a list, for the encoder
    acknowledge BYTES         on the decoder stream, for the encoder

Each is answered on standard output:

    settings BYTES            of new: the encoder's first instructions
    unblocked COUNT           of instructions: how many sections can be decoded now; their lists follow, each a line
    list STREAM BYTES LIST    a section, and what is to be sent on the decoder stream
    blocked STREAM            a section that waits for instructions
    encoded BYTES BYTES       of encode: instructions, and the section
    done                      of acknowledge

At the end of the input the program ends.
"""

import sys

import pylsqpack


def tell(*words):
    print(*words, flush=True)


def digits(data):
    return data.hex() or "-"


def data(text):
    return b"" if text == "-" else bytes.fromhex(text)


def tell_list(stream, instructions, lines):
    lines = [f"{name.hex()}:{value.hex()}" for name, value in lines]
    tell("list", stream, digits(instructions), *lines)


decoder = encoder = None
for command in sys.stdin:
    word, *words = command.split()
    if word == "new":
        capacity, blocked = map(int, words)
        decoder = pylsqpack.Decoder(capacity, blocked)
        encoder = pylsqpack.Encoder()
        tell("settings", digits(encoder.apply_settings(capacity, blocked)))
    elif word == "instructions":
        streams = decoder.feed_encoder(data(words[0]))
        tell("unblocked", len(streams))
        for stream in streams:
            tell_list(stream, *decoder.resume_header(stream))
    elif word == "section":
        stream = int(words[0])
        try:
            tell_list(stream, *decoder.feed_header(stream, data(words[1])))
        except pylsqpack.StreamBlocked:
            tell("blocked", stream)
    elif word == "encode":
        lines = [tuple(map(bytes.fromhex, line.split(":"))) for line in words[1:]]
        instructions, section = encoder.encode(int(words[0]), lines)
        tell("encoded", digits(instructions), digits(section))
    elif word == "acknowledge":
        encoder.feed_decoder(data(words[0]))
        tell("done")
