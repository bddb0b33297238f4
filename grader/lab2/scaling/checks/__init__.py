"""The checks of gradient scaling, and what each training must come to."""
