"""The parts of the page, one function each: `View` in, markup out; a part without data says so in one line."""
