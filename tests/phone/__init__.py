"""A phone made of a directory and a daemon that the real `adb` takes for one."""
